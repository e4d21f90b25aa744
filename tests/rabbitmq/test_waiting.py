"""Messages that wait: on time, through a crash of the broker, in a bounded number of queues."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pika
import pytest

from homing import Message, open_store
from homing.errors import NotInFlightError, StoreError
from homing.store import ATTEMPTS, EXPIRED
from homing.stores.rabbitmq import topology
from homing.stores.rabbitmq.store import RabbitStore
from homing.stores.rabbitmq.topology import LEVELS, LONGEST, UNIT, delay_route
from homing.testing.conformance.waiting import drain, eventually, take
from tests.rabbitmq_server import RabbitMQ

pytestmark = pytest.mark.services


def _in(seconds: float) -> datetime:
    return datetime.now(timezone.utc) + timedelta(seconds=seconds)


def test_a_scheduled_message_is_delivered_when_it_is_due(store: RabbitStore) -> None:
    due = _in(1.3)
    store.store("later", scheduled_at=due)
    store.store("now")
    assert store.lengths()["scheduled"] == 1

    first, second = drain(store, 2)

    assert (first.content, second.content) == ("now", "later")
    assert 0 <= (datetime.now(timezone.utc) - due).total_seconds() < 3
    assert second.scheduled_at == due
    assert store.lengths()["scheduled"] == 0


def test_many_times_come_in_their_order(store: RabbitStore) -> None:
    waits = [2.0, 0.4, 1.2, 0.7, 1.6, 0.2, 0.9]
    for wait in waits:
        store.store(wait, scheduled_at=_in(wait))

    assert [message.content for message in drain(store, len(waits))] == sorted(waits)


@pytest.mark.usefixtures("cautious")
def test_the_first_message_ever_scheduled_survives_the_death_of_the_broker(
    store: RabbitStore, rabbitmq: RabbitMQ
) -> None:
    """The broker writes the names of new queues down a second later: what waits in a younger one would be lost."""
    assert store.retrieve() is None  # makes the store's own queue
    rabbitmq.restart()  # which is old enough by now
    due = _in(9)
    store.store("later", scheduled_at=due, id="m1", headers={"k": ["v"]})
    rabbitmq.restart(signal.SIGKILL)

    message = take(store, timeout=150)

    assert (message.id, message.content, message.headers) == ("m1", "later", {"k": ["v"]})
    assert datetime.now(timezone.utc) >= due


@pytest.mark.usefixtures("cautious")
def test_queues_whose_maker_died_before_they_could_be_trusted_are_not_trusted_by_the_next(
    open_one: Callable[..., RabbitStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    dying, next_one = open_one(), open_one()
    for store in (dying, next_one):  # what takes messages at once is trusted by now
        store.store("now")
        drain(store, 1)
    monkeypatch.setattr(topology, "_settle", _die)
    with pytest.raises(RuntimeError):
        dying.store("lost with its maker", scheduled_at=_in(0.2))
    monkeypatch.undo()
    began = time.monotonic()
    next_one.store("later", scheduled_at=_in(0.2))

    assert time.monotonic() - began >= topology.SETTLED_AFTER
    began = time.monotonic()
    dying.store("later still", scheduled_at=_in(0.2))
    assert time.monotonic() - began < topology.SETTLED_AFTER  # that they are old enough by now is known to all
    assert [message.content for message in drain(next_one, 2)] == ["later", "later still"]


def _die(*_: Any) -> None:
    raise RuntimeError


def test_a_queue_for_waiting_that_is_deleted_is_made_anew(store: RabbitStore, channel: Any, name: str) -> None:
    store.store("first", scheduled_at=_in(0.1))
    drain(store, 1)
    channel.queue_delete(f"{name}.delay.0")
    with pytest.raises(StoreError, match="m1"):
        store.store("second", id="m1", scheduled_at=_in(0.1))

    store.store("second", id="m1", scheduled_at=_in(0.1))

    assert drain(store, 1)[0].id == "m1"


def test_a_time_that_has_passed_is_now(store: RabbitStore) -> None:
    store.store("a", scheduled_at=_in(-5))

    assert drain(store, 1)[0].content == "a"


def test_a_released_message_waits_twice_as_long_each_time(open_one: Callable[..., RabbitStore]) -> None:
    store = open_one(backoff=0.4)
    store.store("a")
    message, waits = take(store), []
    for _ in range(3):
        store.acknowledge(message, success=False)
        released = time.monotonic()
        message = take(store)
        waits.append(time.monotonic() - released)

    assert all(wait >= asked for wait, asked in zip(waits, (0.4, 0.8, 1.6), strict=True))


def test_waiting_makes_no_more_queues_for_more_times(store: RabbitStore, channel: Any, name: str) -> None:
    for n in range(40):
        store.store(n, scheduled_at=_in(0.1 + n / 50))

    levels = [level for level in range(LEVELS) if _exists(channel.connection, f"{name}.delay.{level}")]

    assert levels == list(range(len(levels)))
    assert len(levels) <= 4
    assert sorted(message.content for message in drain(store, 40)) == list(range(40))


def _exists(connection: Any, queue: str) -> bool:
    channel = connection.channel()
    try:
        channel.queue_declare(queue, passive=True)
    except pika.exceptions.ChannelClosedByBroker:
        return False
    channel.close()
    return True


def test_a_message_arrives_early_only_to_wait_on(store: RabbitStore, channel: Any, name: str) -> None:
    """A wait of more than the longest is cut into several: this is its second part."""
    store.store("make the queues", scheduled_at=_in(0.1))
    drain(store, 1)
    due = _in(2.5)
    headers = {"homing-encoding": "text", "homing-due-at": int(due.timestamp() * 1e6)}
    channel.basic_publish("", name, b"later", pika.BasicProperties(headers=headers, message_id="m1"))

    message = take(store)

    assert (message.id, message.content) == ("m1", "later")
    assert datetime.now(timezone.utc) >= due


def test_what_is_due_for_longer_than_its_time_to_live_is_dead(store: RabbitStore, url: str) -> None:
    store.store(Message("m1", "old", time_to_live=timedelta(milliseconds=200)))
    store.store(Message("m2", "fresh", time_to_live=timedelta(hours=1)))
    time.sleep(0.3)

    assert [message.id for message in drain(store, 1)] == ["m2"]
    with open_store(f"{url}.dead") as dead:
        message = take(dead)
        assert (message.id, message.content, message.dead_letter_reason) == ("m1", "old", EXPIRED)


def test_what_is_postponed_comes_when_it_is_due_with_its_attempts_and_is_no_crash(store: RabbitStore) -> None:
    store.store({"n": 1}, id="m1", headers={"trace": "x"})
    for attempts in (1, 2, 3):
        message = take(store)
        asked = time.monotonic()
        assert store.postpone(message, 0.3, attempts=attempts)
        with pytest.raises(NotInFlightError):
            store.acknowledge(message)
    again = take(store)

    assert time.monotonic() - asked >= 0.3
    assert (again.id, again.content, again.delivery_count) == ("m1", {"n": 1}, 1)
    assert again.headers == {"trace": "x", ATTEMPTS: 3}
    store.acknowledge(again, success=False)
    assert take(store).headers == {"trace": "x"}  # released is not postponed: its attempts begin anew


def test_a_strangers_message_is_postponed_as_it_is(store: RabbitStore, channel: Any, name: str) -> None:
    assert store.retrieve() is None  # makes the queue
    properties = pika.BasicProperties(content_type="application/json", headers={"k": 1}, message_id="m1")
    channel.basic_publish("", name, b'{"n": 1.50}', properties)
    store.postpone(take(store), 0.1, attempts=7)
    message = take(store)

    assert (message.id, message.content, message.headers) == ("m1", {"n": 1.5}, {"k": 1, ATTEMPTS: 7})


@pytest.mark.parametrize("seconds", [0.01, 0.1, 0.11, 1, 60, 3600, 86_400, 30 * 86_400, LONGEST])
def test_a_wait_is_the_sum_of_the_levels_its_route_names(seconds: float) -> None:
    exchange, key, level = delay_route("orders", seconds)

    bits = key.split(".")
    waited = sum(UNIT * 2 ** (LEVELS - 1 - place) for place, bit in enumerate(bits) if bit == "1")
    assert re.fullmatch(rf"orders\.delay\.{level}", exchange)
    assert len(bits) == LEVELS
    assert bits[LEVELS - 1 - level] == "1"
    assert "1" not in bits[: LEVELS - 1 - level]
    assert seconds - 1e-6 <= waited < seconds + UNIT


def test_waiting_through_every_level_ends_in_the_queue(store: RabbitStore, channel: Any, name: str) -> None:
    """The highest levels take weeks: what has them behind it is sent in below them."""
    store.store("long", scheduled_at=datetime.now(timezone.utc) + timedelta(seconds=LONGEST))
    assert store.lengths()["scheduled"] == 1
    key = ".".join("1" if level in (0, 2) else "0" for level in reversed(range(LEVELS)))
    properties = pika.BasicProperties(headers={"homing-encoding": "text"}, message_id="m1")
    channel.basic_publish(f"{name}.delay.{LEVELS - 1}", key, b"short", properties)

    assert eventually(store.retrieve).content == "short"


@pytest.mark.parametrize("offset", [3600.0, -3600.0])
@pytest.mark.parametrize("waits", ["postponed", "released"])
def test_what_waits_for_its_next_try_waits_no_longer_where_the_clock_of_whoever_had_it_is_wrong(
    open_one: Callable[..., RabbitStore], monkeypatch: pytest.MonkeyPatch, waits: str, offset: float
) -> None:
    wrong, right = open_one(backoff=0.2), open_one()
    wrong.store("a", id="m1")
    now = time.time
    with monkeypatch.context() as patched:
        patched.setattr(time, "time", lambda: now() + offset)
        message = take(wrong)
        if waits == "postponed":
            wrong.postpone(message, 0.2, attempts=1)
        else:
            wrong.acknowledge(message, success=False)

    assert take(right).id == "m1"
