"""What Vitess says of its messaging, where no other test would fail without it."""

from __future__ import annotations

import sqlalchemy as sa

from homing.stores.sql import SqlStore
from tests.unit.stores.conftest import Clock


def test_a_store_takes_messages_in_while_nobody_takes_any_out(url: str) -> None:
    with SqlStore(sa.make_url(url), "orders", rate=1) as store:
        store.store_many(range(1_000))
        held = store.claim(1)
        assert store.claim(10) == [], "its consumer is as slow as this"

        store.store("one more")
        store.store_many(["and", "another"])

        assert store.count()["available"] == 1_002
        store.settle(held)


def test_an_acknowledged_message_stays_until_it_is_purged(url: str, clock: Clock) -> None:
    with SqlStore(sa.make_url(url), "orders", clock=clock) as store:
        store.store("done", id="m")
        store.settle(store.claim(1))
        clock.advance(10 * 365 * 86_400)
        store.store("another")
        store.settle(store.claim(1))

        assert [message.content for message in store.browse(10, state="acknowledged")] == ["done", "another"]


def test_purging_counts_from_the_acknowledgement(url: str, clock: Clock) -> None:
    with SqlStore(sa.make_url(url), "orders", clock=clock) as store:
        store.store("stored long ago, acknowledged now")
        clock.advance(3_600)
        store.settle(store.claim(1))

        assert store.purge(600) == 0
        clock.advance(601)
        assert store.purge(600) == 1
