"""Queues that an operator's policy limits: what does not fit is refused, and nothing that was accepted is dropped."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest

from homing.errors import StoreError
from homing.stores.rabbitmq.store import RabbitStore
from homing.testing.conformance.waiting import eventually, take
from tests.rabbitmq_server import LIMITED, ROOM

pytestmark = pytest.mark.services


@pytest.fixture
def name(name: str) -> str:
    """The name of a fresh store, each queue of which has room for a few messages."""
    return f"{LIMITED}-{name}"


@pytest.mark.parametrize("queue_type", ["quorum", "classic"])
def test_what_a_full_queue_took_is_still_there(open_one: Callable[..., RabbitStore], queue_type: str) -> None:
    store, accepted = open_one(queue_type=queue_type), list[str]()
    for number in range(4 * ROOM):
        with suppress(StoreError):
            accepted.append(store.store(number))

    assert len(accepted) < 4 * ROOM, "the policy has a limit that was reached"
    assert [take(store).id for _ in accepted] == accepted
    assert store.lengths()["dead"] == 0


@pytest.mark.parametrize("queue_type", ["quorum", "classic"])
def test_a_dead_letter_that_has_no_room_is_not_lost_nor_is_any_before_it(
    open_one: Callable[..., RabbitStore], name: str, queue_type: str
) -> None:
    store, kept, refused = open_one(queue_type=queue_type), list[str](), list[str]()
    for number in range(4 * ROOM):
        store.store(number)
        message = take(store)
        try:
            store.dead_letter(message, reason="bad")
            kept.append(message.id)
        except StoreError:
            store.acknowledge(message)
            refused.append(message.id)

    assert kept
    assert refused, "the policy has a limit that was reached"
    eventually(lambda: store.lengths()["dead"] == len(kept))
    dead = open_one(store=f"{name}.dead", queue_type=queue_type)
    assert [take(dead).id for _ in kept] == kept
