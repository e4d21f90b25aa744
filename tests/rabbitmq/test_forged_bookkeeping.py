"""Bookkeeping of a message that strangers wrote: it holds up nobody, and gives no message more tries than others."""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

import pika
import pytest

from homing.message import DEAD
from homing.store import UNREADABLE
from homing.stores.rabbitmq.store import RabbitStore
from homing.testing.conformance.waiting import eventually, take

pytestmark = pytest.mark.services

_OURS = "homing/json/1794914256155700"


def put(channel: Any, name: str, headers: dict[str, Any], message_id: str = "stranger") -> None:
    channel.confirm_delivery()
    properties = pika.BasicProperties(message_id=message_id, type=_OURS, headers=headers)
    channel.basic_publish("", name, b'{"a": 1}', properties)


@pytest.mark.parametrize("how", ["quorum, one by one", "quorum, ahead", "classic, one by one", "classic, ahead"])
@pytest.mark.parametrize("said", ["abc", [1], {"a": 1}, -7, 2**62, True])
def test_a_stranger_may_say_anything_about_how_often_a_message_came_back(
    open_one: Callable[..., RabbitStore], channel: Any, name: str, said: Any, how: str
) -> None:
    queue_type, _, prefetch = how.partition(", ")
    store = open_one(prefetch=100 if prefetch == "ahead" else 1, queue_type=queue_type)
    assert store.retrieve() is None  # makes the queue
    put(channel, name, {"x-delivery-count": said})
    neighbour = store.store("neighbour")

    first, second = take(store), take(store)

    assert [first.id, second.id] == ["stranger", neighbour]
    assert first.delivery_count == 1


@pytest.mark.parametrize(
    "headers",
    [
        {"homing-envelope": '{"time_to_live": 8e13}'},
        {"homing-envelope": '{"time_to_live": 864000}', "homing-due-at": 253_402_300_799_000_000},
    ],
)
def test_a_message_that_may_live_beyond_the_last_day_holds_up_nobody(
    store: RabbitStore, channel: Any, name: str, headers: dict[str, Any]
) -> None:
    assert store.retrieve() is None
    put(channel, name, headers)
    neighbour = store.store("neighbour")

    seen = [take(store).id]
    if seen != [neighbour]:  # the stranger's is due at once
        seen.append(take(store).id)

    assert neighbour in seen


@pytest.mark.parametrize("queue_type", ["quorum", "classic"])
@pytest.mark.parametrize("header", ["homing-crashes", "homing-deliveries", "x-delivery-count"])
def test_what_kills_its_consumer_is_found_whatever_was_said_of_its_crashes(
    open_one: Callable[..., RabbitStore], channel: Any, name: str, header: str, queue_type: str
) -> None:
    options: dict[str, Any] = {"max_deliveries": 2, "queue_type": queue_type}
    assert open_one(**options).retrieve() is None
    put(channel, name, {header: -1000})

    for _ in range(4):  # a classic queue tells of the first crash only with the second delivery
        consumer = open_one(**options)
        if eventually(lambda consumer=consumer: consumer.retrieve() or consumer.lengths()[DEAD]) == 1:
            return
        hang_up(consumer)
    pytest.fail("it was handed out again and again")


class Raw(pika.BasicProperties):
    """What pika itself does not write: a time of no year that Python knows."""

    def encode(self) -> list[bytes]:
        written = b"".join(super().encode())
        return [written.replace(struct.pack(">cQ", b"T", 0), struct.pack(">cQ", b"T", 2**62))]


def nested(levels: int) -> dict[str, Any]:
    headers: dict[str, Any] = {}
    for _ in range(levels):
        headers = {"a": headers}
    return headers


#: Properties that pika's own decoder cannot read, or that could not be sent on.
UNREADABLE_ONES = {
    "201 levels": Raw(headers=nested(201)),
    "480 levels": Raw(headers=nested(480)),
    "1200 levels": Raw(headers=nested(1200)),
    "a time after all times": Raw(headers={"at": datetime(1970, 1, 1, tzinfo=timezone.utc)}),
}


@pytest.mark.parametrize("prefetch", [1, 100])
@pytest.mark.parametrize("what", UNREADABLE_ONES)
def test_properties_that_nobody_can_read_stop_no_consumer(
    open_one: Callable[..., RabbitStore], channel: Any, name: str, what: str, prefetch: int
) -> None:
    store = open_one(prefetch=prefetch)
    assert store.retrieve() is None
    publish(channel, name, UNREADABLE_ONES[what])
    neighbour = store.store("neighbour")

    assert take(store).id == neighbour

    with open_one(store=f"{name}.dead") as dead:
        message = take(dead)
    assert message.content == "the content"
    assert message.dead_letter_reason == UNREADABLE


@pytest.mark.parametrize("field", ["message_id", "content_type", "correlation_id", "reply_to", "type"])
def test_a_property_that_is_no_text_stops_no_consumer(store: RabbitStore, channel: Any, name: str, field: str) -> None:
    assert store.retrieve() is None
    publish(channel, name, pika.BasicProperties(**{field: b"\xff\xfe"}))
    neighbour = store.store("neighbour")

    first, second = take(store), take(store)

    assert (first.content, second.id) == ("the content", neighbour)
    texts = (first.id, first.content_type, first.correlation_id, first.reply_to, first.subject)
    assert {type(text) for text in texts} <= {str, type(None)}


def publish(channel: Any, name: str, properties: Any) -> None:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(100_000)  # of this sender
    try:
        channel.confirm_delivery()
        channel.basic_publish("", name, b"the content", properties)
    finally:
        sys.setrecursionlimit(before)


def hang_up(store: RabbitStore) -> None:
    """As a process that dies: nothing is given back."""
    for part in (store._consumer, store._publisher):
        part.link.close()
