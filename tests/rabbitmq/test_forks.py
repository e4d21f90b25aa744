"""A RabbitMQ store in processes that were forked after it was used."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest

from homing.errors import LeaseLostError
from homing.stores.rabbitmq.store import RabbitStore
from tests.forked import fork, held_by_a_thread, went_well

pytestmark = [pytest.mark.services, pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")]

EACH = 150
Open = Callable[..., RabbitStore]


def stored(store: RabbitStore, who: str, count: int = EACH) -> None:
    for number in range(count):
        store.store(number, id=f"{who}-{number}")


def drained(store: RabbitStore, expected: int) -> list[str]:
    found: list[str] = []
    deadline = time.monotonic() + 60
    while len(found) < expected and time.monotonic() < deadline:
        message = store.retrieve()
        if message is not None:
            found.append(message.id)
            store.acknowledge(message)
    return found


def test_two_children_and_their_parent_store_at_the_same_time_and_lose_nothing(
    open_one: Open,
) -> None:
    store = open_one()
    stored(store, "before", 1)
    children = [fork(lambda who=who: stored(store, who)) for who in ("first", "second")]  # type: ignore[misc]
    stored(store, "parent")
    assert went_well(*children)
    expected = {"before-0", *(f"{who}-{n}" for who in ("first", "second", "parent") for n in range(EACH))}
    found = drained(store, len(expected))
    assert len(found) == len(expected)
    assert set(found) == expected


def test_a_message_leased_in_the_parent_is_the_parents_to_settle(open_one: Open) -> None:
    store = open_one()
    store.store("a", id="1")
    message = store.retrieve()
    assert message is not None

    def refused() -> bool:
        for known in (message, "1"):
            with pytest.raises(LeaseLostError, match="another process"):
                store.acknowledge(known)
        return store.retrieve() is None  # nobody gave it back either

    assert went_well(fork(refused))
    store.acknowledge(message)
    assert store.retrieve() is None


def test_a_lock_that_a_thread_held_does_not_hang_the_child(open_one: Open) -> None:
    store = open_one()
    store.store("a", id="1")
    with held_by_a_thread(store._publisher.link.lock), held_by_a_thread(store._consumer.link.lock):
        child = fork(lambda: store.store("b", id="2") == "2" and store.retrieve() is not None and store.close())
        assert went_well(child)
    assert len(drained(store, 2)) == 2


def test_the_keeper_of_a_child_takes_back_its_own_leases(open_one: Open) -> None:
    store = open_one(ack_wait=0.5)
    store.store("a", id="1")
    message = store.retrieve()  # has the parent's keeper run
    assert message is not None
    store.acknowledge(message)
    store.store("b", id="2")

    def use() -> bool:
        held = store.retrieve()
        assert held is not None
        deadline = time.monotonic() + 30
        while store._consumer.held_count() and time.monotonic() < deadline:
            time.sleep(0.05)
        return store._consumer.held_count() == 0

    assert went_well(fork(use))
