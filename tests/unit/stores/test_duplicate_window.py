"""An id is known for its window, whenever acknowledged messages are cleared away."""

from __future__ import annotations

import pytest

from homing.store import Store
from homing.stores.memory.store import MemoryOptions, MemoryStore
from tests.clocks import Clock
from tests.unit.stores.databases import timed


def refuses_the_second(store: Store, clock: Clock) -> None:
    store.store("first", id="m")
    store.acknowledge(store.retrieve() or "m")
    clock.advance(60)  # longer than what is finished is kept

    store.purge()
    store.store("second", id="m")

    assert store.retrieve() is None


def test_a_purge_leaves_what_the_window_needs(database: str, clock: Clock) -> None:
    with timed(database, clock, duplicate_window=3600, purge_after=30) as store:
        assert store.purgeable() == 0
        refuses_the_second(store, clock)
        assert store.purge(0) == 1  # whoever says so takes the id with it


def test_a_memory_store_forgets_nothing_within_the_window(clock: Clock) -> None:
    with MemoryStore("known", MemoryOptions(duplicate_window=3600, purge_after=30), clock=clock) as store:
        refuses_the_second(store, clock)


@pytest.mark.parametrize("window", [0, 1])
def test_an_id_that_waits_is_known_after_its_window(database: str, clock: Clock, window: int) -> None:
    with timed(database, clock, duplicate_window=window) as store:
        store.store("first", id="m")
        clock.advance(window + 1)

        store.store("second", id="m")

        assert [message.content for message in store.claim(2)] == ["first"]
