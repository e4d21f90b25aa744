"""Queues that an operator's policy limits: what does not fit is refused, and nothing that was accepted is dropped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from homing.errors import StoreError
from homing.stores.rabbitmq.store import RabbitStore
from homing.testing.conformance.waiting import eventually, take
from tests.rabbitmq_server import RabbitMQ

pytestmark = pytest.mark.services

_ROOM = 3


@pytest.fixture
def limited(rabbitmq: RabbitMQ, name: str) -> Iterator[None]:
    """Each queue of the store has room for a few messages."""
    rabbitmq.control("set_policy", name, f"^{name}", f'{{"max-length":{_ROOM}}}', "--apply-to", "queues")
    yield
    rabbitmq.control("clear_policy", name)


@pytest.mark.usefixtures("limited")
@pytest.mark.parametrize("queue_type", ["quorum", "classic"])
def test_what_a_full_queue_took_is_still_there(open_one: Callable[..., RabbitStore], queue_type: str) -> None:
    store, accepted = open_one(queue_type=queue_type), list[str]()
    for number in range(4 * _ROOM):
        with suppress(StoreError):
            accepted.append(store.store(number))

    assert len(accepted) < 4 * _ROOM, "the policy has a limit that was reached"
    assert [take(store).id for _ in accepted] == accepted
    assert store.lengths()["dead"] == 0


@pytest.mark.usefixtures("limited")
@pytest.mark.parametrize("queue_type", ["quorum", "classic"])
def test_a_dead_letter_that_has_no_room_is_not_lost_nor_is_any_before_it(
    open_one: Callable[..., RabbitStore], name: str, queue_type: str
) -> None:
    store, kept, refused = open_one(queue_type=queue_type), list[str](), list[str]()
    for number in range(4 * _ROOM):
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
