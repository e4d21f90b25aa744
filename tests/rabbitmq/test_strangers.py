"""Messages that others put into the queue, and messages that cannot be read: never a stuck queue."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pika
import pytest

from homing import Message, open_store
from homing.errors import UnstorableContentError
from homing.store import UNREADABLE
from homing.stores.rabbitmq.store import RabbitStore
from homing.testing.conformance.waiting import drain, take

pytestmark = pytest.mark.services


@pytest.fixture
def dead(url: str) -> Iterator[RabbitStore]:
    with open_store(f"{url}.dead") as store:
        yield store


@pytest.mark.parametrize(
    "case",
    [
        (b"hello", None, "hello"),
        (b"\xff\x00", None, b"\xff\x00"),
        (b'{"n": 1}', "application/json", {"n": 1}),
        (b'{"n": 1}', None, '{"n": 1}'),
        (b'{"n": ', "application/json; charset=utf-8", '{"n": '),
        (b"", None, ""),
    ],
)
def test_a_strangers_message_is_read_as_json_text_or_bytes(
    store: RabbitStore, channel: Any, name: str, case: tuple[bytes, str | None, Any]
) -> None:
    body, content_type, content = case
    assert store.retrieve() is None  # makes the queue
    channel.basic_publish("", name, body, pika.BasicProperties(content_type=content_type))

    message = take(store)

    assert (message.content, type(message.content)) == (content, type(content))
    assert message.id
    store.acknowledge(message)
    assert store.retrieve() is None


def test_a_strangers_headers_and_properties_are_seen_and_survive_a_release(
    store: RabbitStore, channel: Any, name: str
) -> None:
    assert store.retrieve() is None
    properties = pika.BasicProperties(
        message_id="theirs", correlation_id="c", reply_to="r", type="order", timestamp=1_800_000_000,
        headers={"n": 1, "s": "x", "nested": {"b": b"y"}},
    )  # fmt: skip
    channel.basic_publish("", name, b"x", properties)
    store.acknowledge(take(store), success=False)

    message = take(store)

    assert (message.id, message.correlation_id, message.reply_to, message.subject) == ("theirs", "c", "r", "order")
    assert message.headers["n"] == 1
    assert message.headers["s"] == "x"
    assert message.delivery_count == 2
    assert message.enqueued_at is not None
    assert message.enqueued_at.timestamp() == 1_800_000_000


def test_a_message_without_an_id_keeps_the_one_it_got_when_it_is_released(
    store: RabbitStore, channel: Any, name: str
) -> None:
    assert store.retrieve() is None
    channel.basic_publish("", name, b"x")
    first = take(store)
    store.acknowledge(first, success=False)

    assert take(store).id == first.id


@pytest.mark.parametrize(
    "case",
    [
        ("json", {}, b'{"n": '),
        ("rot13", {}, b"x"),
        ("text", {}, b"\xff"),
        ("text", {"homing-headers": "[1]"}, b"x"),
        ("text", {"homing-envelope": "{"}, b"x"),
        ("text", {"homing-envelope": '{"time_to_live": "soon"}'}, b"x"),
        ("text", {"homing-due-at": 2**62}, b"x"),
    ],
)
def test_what_cannot_be_read_is_dead_with_its_reason_and_the_next_is_delivered(
    store: RabbitStore, dead: RabbitStore, channel: Any, name: str, case: tuple[str, dict[str, Any], bytes]
) -> None:
    encoding, headers, body = case
    assert store.retrieve() is None
    channel.basic_publish(
        "", name, body, pika.BasicProperties(message_id="bad", type=f"homing/{encoding}/0", headers=headers)
    )
    store.store("good")

    assert [message.content for message in drain(store, 1)] == ["good"]

    message = take(dead)
    assert (message.id, message.dead_letter_reason) == ("bad", UNREADABLE)
    assert message.dead_letter_description
    assert message.content in (body, body.decode(errors="replace"))
    dead.acknowledge(message)


def test_a_message_of_ours_says_in_its_type_how_to_read_it_and_needs_no_headers(
    store: RabbitStore, channel: Any, name: str
) -> None:
    before = datetime.now(timezone.utc)
    store.store({"n": 1}, id="m1")

    method, properties, body = channel.basic_get(name, auto_ack=False)

    ours, encoding, stored = properties.type.split("/")
    assert (body, ours, encoding) == (b'{"n":1}', "homing", "json")
    assert set(properties.headers or ()) <= {"x-delivery-count"}  # a quorum queue's own
    assert before <= datetime.fromtimestamp(int(stored) / 1e6, timezone.utc) <= datetime.now(timezone.utc)
    channel.basic_nack(method.delivery_tag, requeue=True)
    message = take(store)
    assert (message.content, message.subject) == ({"n": 1}, None)
    assert message.enqueued_at is not None
    assert message.enqueued_at.timestamp() == pytest.approx(int(stored) / 1e6)


@pytest.mark.parametrize("deaths", [7, "yesterday", [1], [{"reason": "expired", "queue": 3}]])
def test_a_stranger_may_say_anything_about_deaths(store: RabbitStore, channel: Any, name: str, deaths: Any) -> None:
    assert store.retrieve() is None
    channel.basic_publish("", name, b"x", pika.BasicProperties(message_id="m1", headers={"x-death": deaths}))

    assert take(store).content == "x"


@pytest.mark.parametrize(
    "kind", ["homing/json", "homing/json/soon", f"homing/json/{10**30}", "homing", "homing-json/1"]
)
def test_a_type_that_only_looks_like_ours_is_a_strangers(
    store: RabbitStore, channel: Any, name: str, kind: str
) -> None:
    assert store.retrieve() is None
    channel.basic_publish("", name, b'{"n": 1}', pika.BasicProperties(type=kind))

    message = take(store)

    assert (message.content, message.subject) == ('{"n": 1}', kind)


def test_a_dead_letter_keeps_its_reason_in_headers_for_everybody(store: RabbitStore, channel: Any, name: str) -> None:
    store.store({"n": 1}, id="m1", headers={"k": "v"})
    store.dead_letter(take(store), reason="no such customer", description="404 from the CRM")

    _, properties, body = channel.basic_get(f"{name}.dead", auto_ack=False)

    assert body == b'{"n":1}'
    assert properties.message_id == "m1"
    assert properties.delivery_mode == 2
    assert properties.headers["homing-dead-letter-reason"] == "no such customer"
    assert properties.headers["homing-dead-letter-description"] == "404 from the CRM"
    assert properties.headers["homing-dead-letter-source"] == name
    assert store.retrieve() is None


def test_the_dead_can_be_read_as_a_store_and_put_back(store: RabbitStore, dead: RabbitStore) -> None:
    store.store({"n": 1}, id="m1", headers={"k": "v"})
    store.dead_letter(take(store), reason="r", description="d")

    entry = take(dead)
    store.store(entry.content, id=entry.id, headers=entry.headers)
    dead.acknowledge(entry)

    assert (entry.dead_letter_reason, entry.dead_letter_description, entry.dead_letter_source) == ("r", "d", store.name)
    assert [message.content for message in drain(store, 1)] == [{"n": 1}]


def test_a_dead_letter_that_is_dead_lettered_stays_with_the_new_reason(store: RabbitStore, dead: RabbitStore) -> None:
    store.store("a")
    store.dead_letter(take(store), reason="first")
    dead.dead_letter(take(dead), reason="second")

    assert take(dead).dead_letter_reason == "second"


@pytest.mark.parametrize("length", [255, 64])
def test_ids_and_properties_too_long_for_amqp_survive(
    store: RabbitStore, open_one: Callable[..., RabbitStore], length: int
) -> None:
    sent = Message("ü" * length, "x", correlation_id="c" * 1000, reply_to="ä" * 200, content_type="text/plain")
    store.store(sent)
    store.acknowledge(take(store), success=False)

    got = take(store)

    assert (got.id, got.correlation_id, got.reply_to) == (sent.id, sent.correlation_id, sent.reply_to)


@pytest.mark.parametrize("count", ["many", {"n": 1}, -5, 2**62])
@pytest.mark.parametrize("queue_type", ["quorum", "classic"])
def test_a_stranger_may_say_anything_about_how_often_it_was_delivered(
    open_one: Callable[..., RabbitStore], channel: Any, name: str, queue_type: str, count: Any
) -> None:
    store = open_one(queue_type=queue_type)
    assert store.retrieve() is None
    channel.basic_publish("", name, b"x", pika.BasicProperties(headers={"x-delivery-count": count}))
    store.store("good")

    messages = drain(store, 2)

    assert [(message.content, message.delivery_count) for message in messages] == [("x", 1), ("good", 1)]


@pytest.mark.parametrize("seconds", [8e13, -8e13])
def test_a_time_to_live_beyond_all_dates_holds_up_nobody(
    store: RabbitStore, channel: Any, name: str, seconds: float
) -> None:
    assert store.retrieve() is None
    envelope = f'{{"time_to_live": {seconds}}}'
    properties = pika.BasicProperties(message_id="m1", type="homing/text/0", headers={"homing-envelope": envelope})
    channel.basic_publish("", name, b"x", properties)
    store.store("good")

    assert [message.content for message in drain(store, 1 if seconds < 0 else 2)][-1] == "good"
    assert store.retrieve() is None


@pytest.mark.parametrize("life", [timedelta.max, timedelta(days=999_999_999), timedelta.min])
def test_a_time_to_live_that_no_store_can_count_is_refused(store: RabbitStore, life: timedelta) -> None:
    with pytest.raises(UnstorableContentError, match="out of range"):
        store.store(Message("m1", "x", time_to_live=life))
