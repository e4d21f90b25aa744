"""What only the store on Service Bus does: locks kept for long work, strangers' messages, dead letters looked at."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceiver
from azure.servicebus.amqp import AmqpAnnotatedMessage

from homing import ListenerConfig, Message, StoreListener, bus, open_store
from homing.bus import MessageReceiver, MessageSender
from homing.errors import (
    ConfigurationError,
    LeaseLostError,
    NoSuchEntityError,
    NotInFlightError,
    StoreUnavailableError,
    TooLargeError,
    UnsupportedError,
)
from homing.lease_renewer import LeaseRenewer
from homing.message import SCHEDULED
from homing.store import ATTEMPTS, CRASHED
from homing.stores.servicebus.store import ServiceBusStore
from tests.servicebus.broker import Settings, Subscription
from tests.servicebus.keys import KEY
from tests.servicebus.rules import Rule
from tests.servicebus.server import ServiceBusServer


@pytest.fixture
def name(servicebus: ServiceBusServer) -> str:
    """A queue whose locks last three seconds."""
    made = f"q{uuid.uuid4().hex[:12]}"
    servicebus.call(lambda: servicebus.broker.make_queue(made, Settings(lock_duration=3.0, max_delivery_count=3)))
    return made


def open_one(server: ServiceBusServer, name: str, **options: Any) -> ServiceBusStore:
    query = "".join(f"&{key}={value}" for key, value in options.items())
    store = open_store(f"{server.url}?store={name}{query}")
    assert isinstance(store, ServiceBusStore)
    return store


@pytest.fixture
def store(servicebus: ServiceBusServer, name: str) -> Iterator[ServiceBusStore]:
    with open_one(servicebus, name) as opened:
        yield opened


def take(store: ServiceBusStore) -> Message:
    deadline = time.monotonic() + 20
    while (message := store.retrieve()) is None:
        assert time.monotonic() < deadline, "nothing came"
    return message


def test_a_lease_longer_than_the_lock_is_kept_by_renewing_it(store: ServiceBusStore) -> None:
    store.store("long work", id="m1")
    message = take(store)

    time.sleep(4.5)  # longer than the lock, well within the lease

    store.acknowledge(message)
    assert store.retrieve() is None


def test_a_store_that_was_closed_and_is_used_again_keeps_its_leases(store: ServiceBusStore) -> None:
    store.store("long work", id="m1")
    store.close()
    message = take(store)

    time.sleep(4.5)  # longer than the lock, well within the lease

    store.acknowledge(message)
    assert store.retrieve() is None


def test_a_lease_shorter_than_the_lock_ends_with_the_message_given_back(servicebus: ServiceBusServer) -> None:
    name = f"q{uuid.uuid4().hex[:12]}"
    servicebus.call(lambda: servicebus.broker.make_queue(name, Settings(lock_duration=300.0, max_delivery_count=3)))
    with open_one(servicebus, name, ack_wait=1) as store, open_one(servicebus, name) as other:
        store.store("a")
        message = take(store)

        again = take(other)  # long before the lock at the service would have ended

        assert again.id == message.id
        with pytest.raises(LeaseLostError):
            store.acknowledge(message)


def test_a_lease_that_ran_out_is_lost_before_anybody_has_looked(
    servicebus: ServiceBusServer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_one(servicebus, name, ack_wait=1) as store:
        store.store("a")
        message = take(store)
        monkeypatch.setattr(LeaseRenewer, "_attend_to", lambda *_: None)  # the thread that would notice has no turn
        time.sleep(1.1)

        with pytest.raises(LeaseLostError):
            store.acknowledge(message)


def test_locks_are_kept_after_whatever_fault_in_keeping_them(
    store: ServiceBusStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.store("long work", id="m1")
    renew, failed = ServiceBusReceiver.renew_message_lock, []

    def fails_once(*arguments: Any, **options: Any) -> Any:
        if not failed:
            failed.append(True)
            raise RuntimeError("a fault of the driver")
        return renew(*arguments, **options)

    monkeypatch.setattr(ServiceBusReceiver, "renew_message_lock", fails_once)
    message = take(store)

    time.sleep(4.5)  # longer than the lock

    assert failed
    store.acknowledge(message)


def test_a_lock_lost_at_the_service_is_never_a_silent_success(
    store: ServiceBusStore, servicebus: ServiceBusServer, name: str
) -> None:
    store.store("a", id="m1")
    message = take(store)
    # As after a failover: the service has forgotten the lock, the client has not heard of it.
    (entry,) = servicebus.broker.queues[name].entries.values()
    servicebus.call(lambda: setattr(entry, "token", None))

    for _ in range(2):
        with pytest.raises(LeaseLostError, match="m1"):
            store.acknowledge(message)

    assert take(store).id == "m1"


def test_dead_letters_can_be_looked_at_with_their_reasons(store: ServiceBusStore) -> None:
    store.store_many([Message("bad", {"n": 1}, headers={"h": [1, None]}), "waiting"])
    store.dead_letter(take(store), reason="invalid", description="n is too small")

    (dead,) = store.peek(dead=True)
    (waiting,) = store.peek()

    assert (dead.id, dead.content, dead.headers, dead.state) == ("bad", {"n": 1}, {"h": [1, None]}, "dead")
    assert (dead.dead_letter_reason, dead.dead_letter_description) == ("invalid", "n is too small")
    assert dead.dead_letter_source == store.name
    assert (waiting.content, waiting.state, waiting.delivery_count) == ("waiting", "available", 0)


def test_what_is_handed_out_too_often_is_a_dead_letter_of_the_stores(servicebus: ServiceBusServer, name: str) -> None:
    with open_one(servicebus, name, max_deliveries=2) as store:
        store.store("deadly")
        for _ in range(2):
            store.acknowledge(take(store), success=False)

        assert store.retrieve() is None

        (dead,) = store.peek(dead=True)
        assert (dead.content, dead.dead_letter_reason) == ("deadly", CRASHED)


def test_what_is_released_too_often_is_the_services_dead_letter(store: ServiceBusStore) -> None:
    store.store("poison", id="p")
    for count in (1, 2, 3):
        message = take(store)
        assert message.delivery_count == count
        store.acknowledge(message, success=False)

    (dead,) = store.peek(dead=True)

    assert (dead.id, dead.dead_letter_reason) == ("p", "crashed")
    assert store.retrieve() is None


def test_messages_of_others_are_read_as_what_they_are(
    store: ServiceBusStore, servicebus: ServiceBusServer, name: str
) -> None:
    client = ServiceBusClient.from_connection_string(servicebus.connection_string)
    with client, client.get_queue_sender(name) as sender:
        sender.send_messages(ServiceBusMessage(b'{"n": 1}', content_type="application/json", message_id="j"))
        sender.send_messages(ServiceBusMessage("plain", application_properties={"k": "v", "n": 7}))
        sender.send_messages(ServiceBusMessage(b"\xff\x00"))
        sender.send_messages(AmqpAnnotatedMessage(value_body={"a": ["b", 1]}))

    got = [take(store) for _ in range(4)]

    assert [message.content for message in got] == [{"n": 1}, "plain", b"\xff\x00", {"a": ["b", 1]}]
    assert got[0].id == "j"
    assert got[1].headers == {"k": "v", "n": 7}
    assert got[3].id.startswith(f"{name}-"), "without an id, its place in the queue is one, and stays so"
    store.acknowledge(got[3], success=False)
    assert take(store).id == got[3].id


def test_what_a_sender_of_the_bus_wrote_on_a_message_is_its_headers(
    store: ServiceBusStore, servicebus: ServiceBusServer, name: str
) -> None:
    properties = {"text": "x", "number": 7, "share": 0.5, "yes": True, "none": None}
    with MessageSender(servicebus.connection_string, queue=name) as sender:
        sender.send(bus.Message(body={"n": 1}, message_id="m1", application_properties=properties))

    message = take(store)

    assert (message.id, message.content, message.headers) == ("m1", {"n": 1}, properties)
    store.dead_letter(message, reason="no", description="not this")
    (dead,) = store.peek(dead=True)
    assert dead.headers == properties, "the reason is not one of them"


def test_what_the_store_wrote_on_a_message_is_received_by_the_bus(
    store: ServiceBusStore, servicebus: ServiceBusServer, name: str
) -> None:
    store.store(Message("m1", "a", headers={"trace": "x", "n": 7, "list": [1, None]}, priority=3))
    with MessageReceiver(servicebus.connection_string, queue=name) as receiver:
        message = receiver.receive(server_wait_time=20)
        assert message is not None
        receiver.complete(message)

    assert message.application_properties == {"trace": "x", "n": 7, "list": "[1,null]"}
    with MessageSender(servicebus.connection_string, queue=name) as sender:
        sender.send(message)
    assert take(store).headers == {"trace": "x", "n": 7, "list": "[1,null]"}


def test_properties_that_no_header_can_be_are_texts(
    store: ServiceBusStore, servicebus: ServiceBusServer, name: str
) -> None:
    known = uuid.uuid4()
    client = ServiceBusClient.from_connection_string(servicebus.connection_string)
    with client, client.get_queue_sender(name) as sender:
        sender.send_messages(ServiceBusMessage("a", application_properties={"id": known}))

    assert take(store).headers == {"id": str(known)}


def test_a_message_without_an_id_is_another_one_in_a_queue_that_was_made_anew(
    servicebus: ServiceBusServer, name: str
) -> None:
    ids = []
    for _ in range(2):
        servicebus.call(lambda: servicebus.broker.make_queue(name, Settings()))
        client = ServiceBusClient.from_connection_string(servicebus.connection_string)
        with client, client.get_queue_sender(name) as sender:
            sender.send_messages(AmqpAnnotatedMessage(value_body="the first of its queue"))
        with open_one(servicebus, name) as store:
            ids.append(take(store).id)

    assert ids[0] != ids[1]


def test_what_cannot_be_decoded_is_a_dead_letter_and_holds_up_nothing(
    store: ServiceBusStore, servicebus: ServiceBusServer, name: str
) -> None:
    client = ServiceBusClient.from_connection_string(servicebus.connection_string)
    with client, client.get_queue_sender(name) as sender:
        broken = {"homing-encoding": "json"}
        sender.send_messages(ServiceBusMessage(b"{", message_id="broken", application_properties=broken))
    store.store("fine")

    assert take(store).content == "fine"
    (dead,) = store.peek(dead=True)
    assert (dead.id, dead.dead_letter_reason, dead.content) == ("broken", "unreadable", "{")


def test_a_subscription_is_a_store_whose_topic_is_stored_to(servicebus: ServiceBusServer) -> None:
    topic = f"t{uuid.uuid4().hex[:12]}"

    def make() -> None:
        made = servicebus.broker.make_topic(topic, Settings())
        queue = servicebus.broker.make_queue(f"{topic}/Subscriptions/s", Settings())
        made.subscriptions["s"] = Subscription(queue, {"all": Rule("all")})

    servicebus.call(make)
    with open_one(servicebus, topic, subscription="s") as store:
        store.store({"n": 1})
        message = take(store)
        assert message.content == {"n": 1}
        store.acknowledge(message)
        assert store.name == f"{topic}/s"


@pytest.mark.parametrize("window", [None, 600.0])
def test_what_is_postponed_comes_when_it_is_due_with_its_attempts_and_is_no_crash(
    servicebus: ServiceBusServer, window: float | None
) -> None:
    """Also from a queue that detects duplicates, which would take the copy for one."""
    name = f"q{uuid.uuid4().hex[:12]}"
    settings = Settings(max_delivery_count=3, duplicate_window=window)
    servicebus.call(lambda: servicebus.broker.make_queue(name, settings))
    with open_one(servicebus, name) as store:
        store.store({"n": 1}, id="m1", headers={"trace": "x"})
        for attempts in (1, 2, 3, 4):
            message = take(store)
            asked = time.monotonic()
            assert store.postpone(message, 0.3, attempts=attempts)
            with pytest.raises(NotInFlightError):
                store.acknowledge(message)
        again = take(store)

        assert time.monotonic() - asked >= 0.3
        assert (again.id, again.content, again.delivery_count) == ("m1", {"n": 1}, 1)
        assert again.headers == {"trace": "x", ATTEMPTS: 4}
        store.acknowledge(again)
        assert (store.retrieve(), store.peek(), store.peek(dead=True)) == (None, [], [])


def test_what_came_back_before_it_was_postponed_is_counted_on(servicebus: ServiceBusServer, name: str) -> None:
    with open_one(servicebus, name, max_deliveries=3) as store:
        store.store("a", id="m1")
        for count in (1, 2):
            message = take(store)
            assert message.delivery_count == count
            store.acknowledge(message, success=False)
        store.postpone(take(store), 0.1, attempts=1)
        copy = take(store)
        assert (copy.id, copy.delivery_count) == ("m1", 3)
        store.acknowledge(copy, success=False)

        assert store.retrieve() is None
        (dead,) = store.peek(dead=True)
        assert (dead.id, dead.dead_letter_reason) == ("m1", CRASHED)


def test_a_message_is_finished_only_when_its_postponed_copy_is_there(
    store: ServiceBusStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.store("a", id="m1")
    message = take(store)

    def away(*_: Any, **__: Any) -> None:
        raise StoreUnavailableError("the service is away")

    monkeypatch.setattr(store, "_send", away)
    with pytest.raises(StoreUnavailableError):
        store.postpone(message, 0.1, attempts=1)

    store.acknowledge(message, success=False)
    assert take(store).id == "m1"


def test_a_postponed_message_is_received_by_the_bus_under_its_own_id(
    servicebus: ServiceBusServer, name: str, store: ServiceBusStore
) -> None:
    store.store("a", id="m1", headers={"trace": "x"})
    store.postpone(take(store), 0.1, attempts=2)
    with MessageReceiver(servicebus.connection_string, queue=name) as receiver:
        received = receiver.receive(server_wait_time=20)
        assert received is not None
        assert (received.body, received.message_id) == ("a", "m1")
        assert received.application_properties == {"trace": "x", ATTEMPTS: 2}


def test_a_subscription_cannot_postpone_since_its_topic_has_others(servicebus: ServiceBusServer) -> None:
    topic = f"t{uuid.uuid4().hex[:12]}"

    def make() -> None:
        made = servicebus.broker.make_topic(topic, Settings())
        for name in ("s", "other"):
            queue = servicebus.broker.make_queue(f"{topic}/Subscriptions/{name}", Settings())
            made.subscriptions[name] = Subscription(queue, {"all": Rule("all")})

    servicebus.call(make)
    with (
        open_one(servicebus, topic, subscription="s") as store,
        open_one(servicebus, topic, subscription="other") as other,
    ):
        store.store("a")
        message = take(store)
        assert not store.postpone(message, 0.1, attempts=1)
        store.acknowledge(message)
        assert len(other.peek()) == 1


LISTENER = """
import sys, time
from homing import ListenerConfig, StoreListener, open_store

def on_message(content):
    seen.append(content)
    print(len(seen), flush=True)
    raise ConnectionError("the destination is away")

seen = []
with open_store(sys.argv[1]) as store:
    listener = StoreListener(store, ListenerConfig(polling_interval=0.05, max_retries=1000, retry_interval=8))
    listener.attach(on_message)
    listener.start()
    time.sleep(600)
"""


def test_what_waits_for_a_retry_when_its_listener_is_killed_is_never_dead(
    servicebus: ServiceBusServer, name: str, store: ServiceBusStore
) -> None:
    store.store_many(["a", "b"])
    for _ in range(6):  # the queue's own limit is three; on a busy machine a listener may come to nothing
        command = [sys.executable, "-c", LISTENER, f"{servicebus.url}?store={name}"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            patience = threading.Timer(30, process.kill)  # where nothing comes any more
            patience.start()
            while process.stdout.readline() not in ("2\n", ""):
                pass
            patience.cancel()
            until = time.monotonic() + 6  # where they wait elsewhere than at the service, this is long enough
            while sum(m.state == SCHEDULED for m in store.peek()) < 2 and time.monotonic() < until:
                time.sleep(0.05)
            process.kill()

    delivered: dict[str, Any] = {}

    def deliver(message: Message) -> None:
        delivered[message.content] = message.headers[ATTEMPTS]

    with StoreListener(store, ListenerConfig(polling_interval=0.05)) as listener:
        listener.attach(deliver)
        listener.start()
        until = time.monotonic() + 60
        while len(delivered) + len(store.peek(dead=True)) < 2 and time.monotonic() < until:
            time.sleep(0.05)
    assert store.peek(dead=True) == []
    assert sorted(delivered) == ["a", "b"]
    assert min(delivered.values()) >= 4


def test_many_that_do_not_fit_are_refused_whole(store: ServiceBusStore) -> None:
    with pytest.raises(TooLargeError):
        store.store_many(["small", "x" * 200_000, "y" * 200_000])
    with pytest.raises(TooLargeError):
        store.store("x" * 1_000_000)

    assert store.retrieve() is None


def test_a_missing_queue_and_a_missing_service_are_told_apart(servicebus: ServiceBusServer) -> None:
    creates, servicebus.broker.create_missing = servicebus.broker.create_missing, None
    try:
        with open_one(servicebus, "no-such-queue", retries=0) as store:
            with pytest.raises(NoSuchEntityError, match="no-such-queue"):
                store.store("a")
            with pytest.raises(NoSuchEntityError, match="no-such-queue"):
                store.retrieve()
    finally:
        servicebus.broker.create_missing = creates
    with (
        open_store("servicebus+emulator://n:a2V5@127.0.0.1:9/?store=q&retries=0") as away,
        pytest.raises(StoreUnavailableError, match="'q'"),
    ):
        away.store("a")


def test_a_wrong_key_is_refused_and_not_repeated(servicebus: ServiceBusServer, name: str) -> None:
    wrong = servicebus.url.replace(quote(KEY, safe=""), "d3Jvbmc%3D")
    with open_store(f"{wrong}?store={name}&retries=0") as store:
        for use in (lambda: store.store("a"), store.retrieve):
            with pytest.raises(ConfigurationError, match="refuses the key") as caught:
                use()
            assert "d3Jvbmc" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    ["servicebus://host/?store=q", "servicebus://n:geheim@host/?store=q&colour=red", "servicebus://n:geheim@h:1/?store=q",
     "servicebus://n:geheim@h/?store=no spaces", "servicebus://n:geheim@h/?ack_wait=0", "servicebus://n:geheim@h:x/"],
)  # fmt: skip
def test_a_bad_url_is_refused_and_its_key_not_repeated(url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        open_store(url)

    assert "geheim" not in str(caught.value)


def test_what_the_service_has_no_way_to_do_is_refused(store: ServiceBusStore) -> None:
    with pytest.raises(UnsupportedError, match="transactions"):
        store.store("a", transaction=object())
    with pytest.raises(UnsupportedError, match="claim"):
        store.claim(1)
