"""Lives of any length, on every database: none is more than it can count with."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from homing import Message
from homing.stores import open_store
from homing.stores.sql import SqlStore


def test_a_long_life_keeps_no_other_message_from_expiring(database: str) -> None:
    with open_store(f"{database}?store=orders") as store:
        assert isinstance(store, SqlStore)
        century = timedelta(days=36_525)
        late, early = (datetime(year, 1, 1, tzinfo=timezone.utc) for year in (2261, 1700))
        store.store_many(
            [
                Message("long", 1, time_to_live=2.9 * century),
                Message("late", 1, time_to_live=2.9 * century, scheduled_at=late),
                Message("negative", 1, time_to_live=-2.9 * century, scheduled_at=early),
                Message("old", 1, time_to_live=timedelta(0)),
            ]
        )

        assert store.expire() == 2

        assert sorted(message.id for message in store.browse(state="dead")) == ["negative", "old"]
