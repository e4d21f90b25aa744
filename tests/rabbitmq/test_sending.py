"""Whatever the broker does not take responsibility for is an error, and one that says how far it got."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pika
import pytest

from homing import Message, open_store
from homing.errors import (
    ConfigurationError,
    PartlyStoredError,
    StoreError,
    StoreUnavailableError,
    UnstorableContentError,
    UnsupportedError,
)
from homing.stores.rabbitmq import topology
from homing.stores.rabbitmq.envelope import Outgoing
from homing.stores.rabbitmq.options import parse_url
from homing.stores.rabbitmq.publisher import Publisher
from homing.stores.rabbitmq.store import RabbitStore
from homing.testing.conformance.waiting import drain, eventually, take
from tests.rabbitmq_server import RabbitMQ, remove_store

pytestmark = pytest.mark.services


def test_a_message_the_broker_cannot_route_is_an_error_and_the_queue_is_made_anew(
    store: RabbitStore, channel: Any, name: str
) -> None:
    store.store("a")
    channel.queue_delete(name)

    with pytest.raises(StoreError, match="NO_ROUTE"):
        store.store("b")

    store.store("c")
    assert [message.content for message in drain(store, 1)] == ["c"]


def test_a_message_the_broker_refuses_is_an_error_that_names_the_first(url: str, channel: Any, name: str) -> None:
    full = f"{name}.full"
    channel.queue_declare(full, durable=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    publisher = Publisher(*parse_url(url))
    outgoing = [Outgoing(f"m{n}", "", full, pika.BasicProperties(message_id=f"m{n}"), b"x") for n in range(3)]

    with pytest.raises(StoreError, match="did not take 2 of 3 messages; the first is m1: refused"):
        publisher.publish(outgoing)

    publisher.link.close()


def test_confirms_of_a_call_that_was_interrupted_confirm_nothing_of_the_next(
    url: str, channel: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = f"{name}.full"
    channel.queue_declare(full, durable=True, arguments={"x-max-length": 0, "x-overflow": "reject-publish"})
    publisher = Publisher(*parse_url(url))

    def packed(queue: str, message_id: str) -> Outgoing:
        return Outgoing(message_id, "", queue, pika.BasicProperties(message_id=message_id), b"x")

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    publisher.publish([packed(name, "m1")])
    with monkeypatch.context() as patched:
        patched.setattr(publisher.link, "run", interrupt)
        with pytest.raises(KeyboardInterrupt):
            publisher.publish([packed(name, "m2")])
    eventually(lambda: channel.queue_declare(name, passive=True).method.message_count == 2)

    with pytest.raises(StoreError, match="did not take 1 of 1 messages"):
        publisher.publish([packed(full, "m3")])

    publisher.link.close()
    remove_store(url.partition("?")[0], name)


def test_messages_are_durable_and_persistent(store: RabbitStore, rabbitmq: RabbitMQ) -> None:
    ids = store.store_many([{"n": n} for n in range(100)])
    rabbitmq.restart()

    assert [message.id for message in drain(store, 100)] == ids


def _release(store: RabbitStore) -> None:
    store.store("a")
    store.acknowledge(take(store), success=False)


@pytest.mark.parametrize(
    "send",
    [lambda store: store.store("a"), lambda store: store.store_many(["a"]), _release],
    ids=["store", "store_many", "release"],
)
def test_a_message_in_a_classic_queue_is_persistent(
    open_one: Callable[..., RabbitStore], channel: Any, name: str, send: Callable[[RabbitStore], object]
) -> None:
    with open_one(queue_type="classic") as store:
        send(store)

    def get() -> Any:
        return channel.basic_get(name, auto_ack=True)[1]

    assert eventually(get).delivery_mode == pika.DeliveryMode.Persistent.value


def test_storing_many_waits_for_no_confirm_before_many_are_on_their_way(
    open_one: Callable[..., RabbitStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    hear, held_back, answered = Publisher._on_answer, list[Any](), set[int]()

    def hear_late(publisher: Publisher, frame: Any) -> None:
        answered.add(frame.method.delivery_tag)
        held_back.append(frame)
        while 100 in answered and held_back:
            hear(publisher, held_back.pop(0))

    monkeypatch.setattr(Publisher, "_on_answer", hear_late)
    store = open_one(timeout=5)

    store.store_many(range(100))

    assert len(drain(store, 100)) == 100


@pytest.mark.usefixtures("cautious")
def test_what_was_confirmed_survives_a_killed_broker_however_young_its_queue_is(
    store: RabbitStore, rabbitmq: RabbitMQ
) -> None:
    """The broker writes the names of new queues down a second later: what lies in a younger one would be lost."""
    ids = store.store_many([{"n": n} for n in range(1000)])
    rabbitmq.restart(signal.SIGKILL)

    assert [message.id for message in drain(store, 1000)] == ids


@pytest.mark.usefixtures("cautious")
def test_a_queue_whose_maker_died_before_it_could_be_trusted_is_not_trusted_by_the_next(
    open_one: Callable[..., RabbitStore],
) -> None:
    consumer, sender = open_one(), open_one()
    consumer.retrieve()  # makes the queue, and would not wait for it
    began = time.monotonic()
    sender.store("a")

    assert time.monotonic() - began >= topology.SETTLED_AFTER


@pytest.mark.usefixtures("cautious")
@pytest.mark.parametrize("suffix", ["", ".dead"])
def test_a_queue_that_is_made_anew_is_not_trusted_for_the_age_of_the_one_before(
    open_one: Callable[..., RabbitStore], channel: Any, name: str, suffix: str
) -> None:
    open_one().store("a")
    channel.queue_delete(name + suffix)
    open_one().retrieve()  # makes it anew
    began = time.monotonic()
    open_one().store("b")

    assert time.monotonic() - began >= topology.SETTLED_AFTER


def test_nothing_is_sent_when_one_of_many_cannot_be_stored(store: RabbitStore) -> None:
    with pytest.raises(UnstorableContentError, match=r"content\.bad"):
        store.store_many(["a", {"bad": object()}])

    assert store.retrieve() is None


def test_nothing_is_sent_when_one_of_many_asks_for_an_order_the_queue_does_not_keep(store: RabbitStore) -> None:
    for message in (Message("m", "m", session_id="s"), Message("m", "m", priority=1)):
        with pytest.raises(UnsupportedError, match="stores that can: memory, sql"):
            store.store_many(["a", message])

    assert store.retrieve() is None


def test_a_dead_letter_keeps_what_was_written_on_it_elsewhere(store: RabbitStore) -> None:
    store.store(Message("m", "m", session_id="s", priority=3, dead_letter_reason="bad", dead_letter_source="orders"))

    letter = take(store)

    assert (letter.session_id, letter.priority, letter.dead_letter_reason) == ("s", 3, "bad")
    store.acknowledge(letter, success=False)
    assert take(store).session_id == "s", "released, it is still the same"
    store.store(Message("n", "n", priority=0))


def _kill_half_way(rabbitmq: RabbitMQ, name: str) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(rabbitmq.url))
    channel = connection.channel()
    while channel.queue_declare(name, passive=True).method.message_count < 5_000:
        time.sleep(0.02)
    rabbitmq.stop(signal.SIGKILL)


def test_a_broker_that_dies_half_way_is_an_error_that_tells_which_are_stored(
    store: RabbitStore, rabbitmq: RabbitMQ, name: str
) -> None:
    messages = [Message(f"m{n}", "x" * 1024) for n in range(30_000)]
    store.store("first")
    rabbitmq.restart()  # by now the broker has written down that there is such a queue
    store.store("second")
    killer = threading.Thread(target=_kill_half_way, args=(rabbitmq, name))
    killer.start()

    with pytest.raises(PartlyStoredError, match="of 30000 messages are stored") as caught:
        store.store_many(messages)

    killer.join()
    rabbitmq.start()
    assert caught.value.ids == [message.id for message in messages]
    found = set[str]()
    while (message := store.retrieve()) is not None:
        found.add(message.id)
        store.acknowledge(message)
    assert 0 < len(caught.value.stored) < 30_000
    assert set(caught.value.stored) <= found


def test_a_broker_that_is_away_is_unavailable_and_is_found_again(store: RabbitStore, rabbitmq: RabbitMQ) -> None:
    store.store("a")
    rabbitmq.stop()
    for attempt in (lambda: store.store("b"), store.retrieve, store.lengths):
        with pytest.raises(StoreUnavailableError):
            attempt()
    rabbitmq.start()

    store.store("c")

    assert [message.content for message in drain(store, 2)] == ["a", "c"]


def test_threads_share_a_store(open_one: Callable[..., RabbitStore]) -> None:
    store, got = open_one(prefetch=50), list[str]()

    def produce(start: int) -> None:
        for n in range(start, start + 50):
            store.store(f"{n}")

    def consume() -> None:
        for _ in range(50):
            message = take(store)
            got.append(message.content)
            store.acknowledge(message)

    threads = [threading.Thread(target=produce, args=(n * 50,)) for n in range(4)]
    threads += [threading.Thread(target=consume) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert sorted(got, key=int) == [f"{n}" for n in range(200)]


def test_a_queue_of_another_type_is_refused_with_the_brokers_own_words(store: RabbitStore, url: str) -> None:
    store.store("a")

    with open_store(f"{url}&queue_type=classic") as other, pytest.raises(ConfigurationError, match="x-queue-type"):
        other.store("b")


def test_an_error_repeats_no_password(rabbitmq: RabbitMQ) -> None:
    wrong = rabbitmq.url.replace("guest:guest", "guest:geheim")

    with open_store(f"{wrong}?store=x") as store, pytest.raises(StoreUnavailableError) as caught:
        store.store("a")

    assert "geheim" not in str(caught.value)
