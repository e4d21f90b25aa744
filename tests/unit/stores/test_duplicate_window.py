"""An id is known for its window, whenever acknowledged messages are cleared away."""

from __future__ import annotations

import time

import pytest

from homing.store import Store
from homing.stores import open_store
from tests.unit.stores.databases import opened


def refuses_the_second(store: Store) -> None:
    store.store("first", id="m")
    store.acknowledge(store.retrieve() or "m")
    time.sleep(0.02)  # longer than what is finished is kept

    store.purge()
    store.store("second", id="m")

    assert store.retrieve() is None


def test_a_purge_leaves_what_the_window_needs(database: str) -> None:
    with opened(database, duplicate_window=3600, purge_after=0.01) as store:
        assert store.purgeable() == 0
        refuses_the_second(store)
        assert store.purge(0) == 1  # whoever says so takes the id with it


def test_a_memory_store_forgets_nothing_within_the_window() -> None:
    with open_store("memory://known?duplicate_window=3600&purge_after=0.01") as store:
        refuses_the_second(store)


@pytest.mark.parametrize("window", [0, 1])
def test_an_id_that_waits_is_known_after_its_window(database: str, window: int) -> None:
    with opened(database, duplicate_window=window) as store:
        store.store("first", id="m")
        time.sleep(window * 1.1)

        store.store("second", id="m")

        assert [message.content for message in store.claim(2)] == ["first"]
