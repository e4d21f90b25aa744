"""SQLite goes by the machine's clock: what was written while that was ahead does not wait until it is there again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
import sqlalchemy as sa

from homing.errors import LeaseLostError
from homing.stores.sql import SqlStore
from tests.unit.stores.conftest import Clock

HOUR = 3600.0
Open = Callable[..., SqlStore]


@pytest.fixture
def open_one(url: str, clock: Clock) -> Iterator[Open]:
    """Opens the store as another process would, by the same clock."""
    opened: list[SqlStore] = []

    def open_it(**properties: float) -> SqlStore:
        opened.append(SqlStore(sa.make_url(url), "orders", clock=clock, **properties))
        return opened[-1]

    yield open_it
    for store in opened:
        store.close()


def test_what_was_stored_while_the_clock_was_ahead_is_delivered_when_it_is_right_again(
    open_one: Open, clock: Clock
) -> None:
    clock.advance(HOUR)
    open_one().store_many(["a", "b"])
    clock.advance(-HOUR)
    store = open_one()
    store.store("c")
    assert store.has_due()
    assert store.due_in() == 0
    assert sorted(message.content for message in store.claim(10)) == ["a", "b", "c"]


def test_a_consumer_that_runs_while_the_clock_is_set_back_goes_on(open_one: Open, clock: Clock) -> None:
    store = open_one()
    assert store.retrieve() is None
    clock.advance(HOUR)
    store.store("a")
    assert store.count()["available"] == 1
    assert store.retrieve() is not None
    store.store("b")
    clock.advance(-HOUR)
    assert [message.content for message in store.claim(10)] == ["b"]


def test_what_is_scheduled_keeps_its_time(open_one: Open, clock: Clock) -> None:
    clock.advance(HOUR)
    due = clock.after(HOUR)
    open_one().store("a", scheduled_at=due)
    clock.advance(-HOUR)
    store = open_one()
    assert store.retrieve() is None
    clock.advance(2 * HOUR + 1)
    assert store.retrieve() is not None


def test_a_lease_taken_while_the_clock_was_ahead_is_kept_and_runs_out(open_one: Open, clock: Clock) -> None:
    clock.advance(HOUR)
    ahead = open_one()
    ahead.store("a")
    message = ahead.claim(1, lease=60)[0]
    clock.advance(-HOUR)
    store = open_one()
    assert store.retrieve() is None  # whoever has it keeps it
    clock.advance(61)
    again = store.retrieve()
    assert again is not None
    with pytest.raises(LeaseLostError):
        ahead.acknowledge(message)
    store.acknowledge(again)


def test_a_lease_taken_while_the_clock_was_ahead_can_be_settled(open_one: Open, clock: Clock) -> None:
    clock.advance(HOUR)
    ahead = open_one()
    ahead.store("a")
    message = ahead.claim(1, lease=60)[0]
    clock.advance(-HOUR)
    assert open_one().retrieve() is None
    ahead.renew(message, 60)
    assert open_one().retrieve() is None
    ahead.acknowledge(message)
    assert ahead.count()["acknowledged"] == 1


def test_what_was_released_while_the_clock_was_ahead_does_not_wait_for_it(open_one: Open, clock: Clock) -> None:
    store = open_one()
    store.store("a")
    clock.advance(HOUR)
    message = store.retrieve()
    assert message is not None
    store.acknowledge(message, success=False)
    clock.advance(-HOUR)
    again = open_one().retrieve()
    assert again is not None
    assert again.delivery_count == 2


def test_a_back_off_and_a_time_that_was_set_are_kept(open_one: Open, clock: Clock) -> None:
    store = open_one(backoff=600.0)
    store.store("a", id="1")
    store.store("b", id="2")
    store.settle(store.claim(2), success=False)
    store.reschedule(["2"], clock.after(3 * HOUR))
    other = open_one(backoff=600.0)
    assert other.claim(10) == []
    clock.advance(1300)
    assert [message.id for message in other.claim(10)] == ["1"]
    clock.advance(3 * HOUR)
    assert "2" in [message.id for message in other.claim(10)]


def test_the_clock_of_the_process_itself_may_be_wrong_too(tmp_path: Path) -> None:
    """Without a clock of the test's: what plain SQL wrote an hour ahead is found by a store of today."""
    url = f"sqlite:///{tmp_path}/inbox.db"
    with SqlStore(sa.make_url(url), "orders") as store:
        store.store("a")
        soon = int((datetime.now(timezone.utc) + timedelta(hours=1)).timestamp() * 1_000_000_000)
        engine = sa.create_engine(url)
        with engine.begin() as connection:
            connection.execute(
                sa.text("update homing_orders set time_next = :t, time_scheduled = :t, time_created = :t"), {"t": soon}
            )
        engine.dispose()
    with SqlStore(sa.make_url(url), "orders") as store:
        assert store.retrieve() is not None
