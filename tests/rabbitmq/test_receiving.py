"""Leases, groups of acknowledgements, and tags that die with their connection."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from homing import Message
from homing.errors import LeaseLostError, NotInFlightError
from homing.store import CRASHED
from homing.stores.rabbitmq.store import RabbitStore
from homing.testing.conformance.waiting import drain, eventually, take
from tests.rabbitmq_server import RabbitMQ

pytestmark = pytest.mark.services


def test_a_tag_of_a_lost_connection_is_never_sent(open_one: Callable[..., RabbitStore], rabbitmq: RabbitMQ) -> None:
    store = open_one()
    store.store_many(["a", "b"])
    stale = take(store)  # tag 1 of the first connection
    rabbitmq.restart()
    current = take(store)  # tag 1 of the second

    with pytest.raises(LeaseLostError, match=stale.id):
        store.acknowledge(stale)
    store.acknowledge(current, success=False)

    assert sorted(message.content for message in drain(store, 2)) == ["a", "b"]
    assert store.retrieve() is None


def test_nothing_is_lost_or_left_when_the_broker_restarts_in_mid_stream(
    open_one: Callable[..., RabbitStore], rabbitmq: RabbitMQ
) -> None:
    store, got = open_one(prefetch=20), list[str]()
    ids = store.store_many([f"{n}" for n in range(200)])
    lost = 0
    for n in range(100):
        message = take(store)
        if n == 50:
            rabbitmq.restart()
        try:
            store.acknowledge(message)
        except LeaseLostError:
            lost += 1
        else:
            got.append(message.id)

    while (message_or_none := store.retrieve()) is not None:
        store.acknowledge(message_or_none)
        got.append(message_or_none.id)

    assert lost == 1
    assert set(got) == set(ids)


def test_what_is_held_too_long_goes_back_and_counts(open_one: Callable[..., RabbitStore]) -> None:
    store, other = open_one(ack_wait=0.3), open_one(ack_wait=30)
    store.store("a")
    late = take(store)

    current = take(other)

    assert current.delivery_count == 2
    with pytest.raises(LeaseLostError):
        store.acknowledge(late)
    other.acknowledge(current)


def test_a_lease_that_ran_out_is_lost_before_anybody_has_looked(
    open_one: Callable[..., RabbitStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_one(ack_wait=1)
    store.store("a")
    message = take(store)
    monkeypatch.setattr(RabbitStore, "tend", lambda _: None)  # the thread that would notice has no turn
    time.sleep(1.1)

    with pytest.raises(LeaseLostError):
        store.acknowledge(message)


def test_a_renewed_lease_lasts(open_one: Callable[..., RabbitStore]) -> None:
    store, other = open_one(ack_wait=0.3), open_one()
    store.store("a")
    message = take(store)
    store.renew(message, 30)
    deadline = time.monotonic() + 1
    while time.monotonic() < deadline:
        assert other.retrieve() is None

    store.acknowledge(message)


@pytest.mark.parametrize("queue_type", ["quorum", "classic"])
def test_what_crashes_its_consumers_is_dead_with_that_reason(
    open_one: Callable[..., RabbitStore], queue_type: str
) -> None:
    store = open_one(queue_type=queue_type, ack_wait=30, max_deliveries=3)
    store.store("poison")
    for _ in range(3):
        take(store)
        store.close()  # as a crash does, this returns the message to the queue

    assert store.retrieve() is None

    store.store("good")
    assert [message.content for message in drain(store, 1)] == ["good"]
    assert store.lengths()["dead"] == 1
    assert _dead(open_one, queue_type).dead_letter_reason == CRASHED


def _dead(open_one: Callable[..., RabbitStore], queue_type: str) -> Message:
    alive = open_one()
    return take(open_one(store=f"{alive.name}.dead", queue_type=queue_type))


def test_acknowledgements_in_any_order_settle_exactly_what_they_name(open_one: Callable[..., RabbitStore]) -> None:
    store = open_one(prefetch=100)
    store.store_many([f"{n}" for n in range(20)])
    messages = [take(store) for _ in range(20)]
    for message in (*messages[10:0:-1], messages[15], messages[17]):
        store.acknowledge(message)
    store.close()

    left = [message.content for message in drain(store, 8)]

    assert sorted(left, key=int) == ["0", "11", "12", "13", "14", "16", "18", "19"]
    assert store.retrieve() is None


def test_more_can_be_held_than_is_sent_ahead(open_one: Callable[..., RabbitStore]) -> None:
    store = open_one(prefetch=2)
    store.store_many(["a", "b", "c", "d", "e"])

    held = [take(store) for _ in range(5)]

    assert [message.content for message in held] == ["a", "b", "c", "d", "e"]
    for message in held:
        store.acknowledge(message)


def test_what_was_sent_ahead_to_an_idle_consumer_goes_to_another(open_one: Callable[..., RabbitStore]) -> None:
    idle, other = open_one(prefetch=100, ack_wait=0.5), open_one()
    idle.store_many(["a", "b", "c"])
    idle.acknowledge(take(idle))

    assert {take(other).content, take(other).content} == {"b", "c"}


def test_acknowledging_twice_raises(open_one: Callable[..., RabbitStore]) -> None:
    store = open_one(prefetch=10)
    store.store("a")
    message = take(store)
    store.acknowledge(message)

    for attempt in (message, message.id):
        with pytest.raises(NotInFlightError):
            store.acknowledge(attempt)


def test_a_released_message_goes_behind_the_others(store: RabbitStore) -> None:
    store.store_many(["bad", "good"])
    store.acknowledge(take(store), success=False)

    assert [message.content for message in drain(store, 2)] == ["good", "bad"]


def test_heartbeats_go_on_while_the_caller_works(open_one: Callable[..., RabbitStore]) -> None:
    store = open_one(heartbeat=1)
    store.store("a")
    message = take(store)
    other = open_one()
    deadline = time.monotonic() + 4
    while time.monotonic() < deadline:
        assert other.retrieve() is None

    store.acknowledge(message)
    store.close()
    assert eventually(lambda: other.retrieve() is None)
