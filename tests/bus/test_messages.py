"""Sending, receiving and settling."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from azure.servicebus import ServiceBusReceiver, ServiceBusSender
from azure.servicebus.exceptions import ServiceBusConnectionError

from homing.bus import Administrator, Message, MessageBatch, ReceiveMode
from homing.errors import (
    BindingError,
    ConfigurationError,
    HomingError,
    LeaseLostError,
    NoSuchMessageError,
    NotInFlightError,
    StoreError,
    TooLargeError,
    UnstorableContentError,
)
from tests.bus.conftest import Bus, get, nothing
from tests.servicebus.server import ServiceBusServer

EVERYTHING = Message(
    body={"n": [1, None, "ü"]}, content_type="application/json", message_id="m1", to="t", reply_to="r",
    reply_to_session_id="rs", label="l", session_id="s", correlation_id="c", partition_key="s", time_to_live=3600,
    application_properties={"text": "x", "number": 7, "share": 0.5, "yes": True, "none": None},
)  # fmt: skip


def in_seconds(seconds: float) -> datetime:
    return datetime.now(timezone.utc) + timedelta(seconds=seconds)


def test_every_field_arrives_and_the_sent_message_is_not_changed(bus: Bus) -> None:
    queue = bus.queue()
    before = replace(EVERYTHING)
    bus.sender(queue=queue).send(EVERYTHING)
    receiver = bus.receiver(queue=queue)

    got = get(receiver)

    for name in (
        "body", "content_type", "message_id", "to", "reply_to", "reply_to_session_id", "label", "session_id",
        "correlation_id", "partition_key", "time_to_live", "application_properties",
    ):  # fmt: skip
        assert getattr(got, name) == getattr(EVERYTHING, name), name
    assert (got.delivery_count, got.state, got.dead_letter_reason) == (1, "active", None)
    assert got.lock_token
    assert got.locked_until is not None
    assert got.locked_until > datetime.now(timezone.utc)
    assert got.sequence_number is not None
    assert got.enqueued_sequence_number == got.sequence_number
    assert got.enqueued_time is not None
    assert abs(got.enqueued_time - datetime.now(timezone.utc)) < timedelta(minutes=5)
    assert before == EVERYTHING
    receiver.complete(got)


def test_a_body_comes_back_equal_and_of_the_same_type(bus: Bus) -> None:
    bodies: list[Any] = ["text", "", b"\x00\xff", b"", 5, 1.5, True, None, [1, "2"], {"a": {"b": None}}]
    queue = bus.queue()
    sender, receiver = bus.sender(queue=queue), bus.receiver(queue=queue)
    for body in bodies:
        sender.send_payload(body)

    got = [get(receiver) for _ in bodies]

    assert [(message.body, type(message.body)) for message in got] == [(body, type(body)) for body in bodies]
    assert [message.content_type for message in got][:5:2] == [
        "text/plain", "application/octet-stream", "application/json",
    ]  # fmt: skip


def test_a_batch_is_sent_and_received_in_order(bus: Bus) -> None:
    queue = bus.queue()
    bus.sender(queue=queue).send_batch(MessageBatch([Message(body=n) for n in range(5)]))

    receiver = bus.receiver(queue=queue)
    batch = receiver.receive_batch(5, server_wait_time=20)

    assert batch is not None
    received = list(batch.messages)
    while len(received) < 5:
        received.append(get(receiver))
    assert [message.body for message in received] == [0, 1, 2, 3, 4]
    assert len({message.lock_token for message in received}) == 5
    assert batch.message_count == len(batch.messages)


def test_a_batch_that_does_not_fit_is_refused_whole(bus: Bus) -> None:
    queue = bus.queue()
    sender = bus.sender(queue=queue)

    with pytest.raises(TooLargeError):
        sender.send_batch([Message(body="small"), *(Message(body="x" * 200_000) for _ in range(10))])
    with pytest.raises(UnstorableContentError, match="content"):
        sender.send_batch([Message(body="small"), Message(body=object())])

    assert nothing(bus.receiver(queue=queue))


def test_a_message_that_is_too_large_is_refused(bus: Bus) -> None:
    queue = bus.queue()
    sender = bus.sender(queue=queue)

    with pytest.raises(TooLargeError, match="bytes"):
        sender.send(Message(body="x" * 2_000_000))

    sender.send_payload("the sender still works")
    assert get(bus.receiver(queue=queue)).body == "the sender still works"


def test_a_payload_is_received_alone_and_is_done_with(bus: Bus) -> None:
    queue = bus.queue(lock_duration=2)
    bus.sender(queue=queue).send_payload({"n": 1})
    receiver = bus.receiver(queue=queue)

    assert receiver.receive_payload(server_wait_time=20) == {"n": 1}
    assert receiver.receive_payload(server_wait_time=0.3) is None
    receiver.close()
    time.sleep(2.2)  # its lock would have ended, if it still had one
    assert nothing(bus.receiver(queue=queue))


@dataclass
class Order:
    number: int


def test_a_body_is_received_as_what_it_is_asked_for(bus: Bus) -> None:
    queue = bus.queue()
    sender, receiver = bus.sender(queue=queue), bus.receiver(queue=queue)
    sender.send_batch([Message(body={"number": n}) for n in (1, 2)])

    message = get(receiver, body_type=Order)

    assert message.body == Order(1)
    receiver.complete(message)
    assert receiver.receive_payload(Order, server_wait_time=20) == Order(2)
    assert nothing(receiver)


def test_a_body_that_does_not_fit_stays_and_is_a_dead_letter_in_the_end(bus: Bus) -> None:
    queue = bus.queue(max_delivery_count=2)
    bus.sender(queue=queue).send(Message(body={"number": "one"}, message_id="m1"))
    receiver = bus.receiver(queue=queue)

    for receive in (receiver.receive, receiver.receive_payload):
        with pytest.raises(BindingError, match=r"m1.*Order"):
            receive(Order, server_wait_time=20)

    assert nothing(receiver)
    assert get(receiver, dead_lettered=True).body == {"number": "one"}
    deleting = bus.receiver(queue=queue, receive_mode=ReceiveMode.RECEIVE_AND_DELETE)
    with pytest.raises(ConfigurationError, match="would be lost"):
        deleting.receive_payload(Order)


def test_what_comes_after_the_last_receive_is_not_deleted(bus: Bus) -> None:
    queue = bus.queue()
    sender = bus.sender(queue=queue)
    idle = bus.receiver(queue=queue, receive_mode=ReceiveMode.RECEIVE_AND_DELETE)
    assert idle.receive(server_wait_time=0.2) is None
    sender.send_payload("nobody asked for it")
    time.sleep(0.3)  # in which a service could push it

    idle.close()

    receiver = bus.receiver(queue=queue)
    assert receiver.receive_payload(server_wait_time=20) == "nobody asked for it"


def test_what_comes_after_a_batch_that_was_not_full_is_not_deleted(bus: Bus) -> None:
    queue = bus.queue()
    sender = bus.sender(queue=queue)
    deleting = bus.receiver(queue=queue, receive_mode=ReceiveMode.RECEIVE_AND_DELETE)
    sender.send_payload("first")
    batch = deleting.receive_batch(5, server_wait_time=20)
    assert batch is not None
    assert [message.body for message in batch.messages] == ["first"]
    sender.send_payload("second")
    time.sleep(0.3)

    deleting.close()

    receiver = bus.receiver(queue=queue)
    assert receiver.receive_payload(server_wait_time=20) == "second"
    assert nothing(receiver)


def test_what_was_deleted_before_the_service_failed_is_handed_out(
    servicebus: ServiceBusServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus = Bus(servicebus.connection_string)
    queue = bus.queue()
    bus.sender(queue=queue).send_batch([Message(body=n) for n in range(3)])
    deleting = bus.receiver(queue=queue, receive_mode=ReceiveMode.RECEIVE_AND_DELETE)
    complete, done = ServiceBusReceiver.complete_message, []

    def fail_after_one(*arguments: Any) -> None:
        if done:
            raise ServiceBusConnectionError(message="the service went away")
        done.append(complete(*arguments))

    monkeypatch.setattr(ServiceBusReceiver, "complete_message", fail_after_one)
    received = []
    while not received:
        batch = deleting.receive_batch(3, server_wait_time=20)
        received += batch.messages if batch else []
    monkeypatch.undo()

    assert [message.body for message in received] == [0]
    assert len(servicebus.broker.queues[queue].entries) == 2
    bus.close()


def test_an_empty_queue_gives_nothing(bus: Bus) -> None:
    receiver = bus.receiver(queue=bus.queue())

    assert receiver.receive(server_wait_time=0.2) is None
    assert receiver.receive_batch(3, server_wait_time=0.2) is None


def test_an_abandoned_message_comes_again_until_it_is_a_dead_letter(bus: Bus) -> None:
    queue = bus.queue(max_delivery_count=2)
    bus.sender(queue=queue).send(Message(body="poison", message_id="p", label="l", application_properties={"k": 1}))
    receiver = bus.receiver(queue=queue)

    for count in (1, 2):
        message = get(receiver)
        assert message.delivery_count == count
        receiver.abandon(message)

    assert nothing(receiver)
    dead = get(receiver, dead_lettered=True)
    assert (dead.body, dead.message_id, dead.label) == ("poison", "p", "l")
    assert dead.application_properties == {"k": 1}
    assert dead.dead_letter_reason == "MaxDeliveryCountExceeded"
    receiver.complete(dead)
    assert nothing(receiver, dead_lettered=True)


def test_a_message_whose_receivers_never_settle_it_is_a_dead_letter(bus: Bus) -> None:
    queue = bus.queue(max_delivery_count=1, lock_duration=1.0)
    bus.sender(queue=queue).send_payload("deadly")
    assert get(bus.receiver(queue=queue, max_auto_lock_renew_duration=0)).body == "deadly"
    time.sleep(1.2)

    receiver = bus.receiver(queue=queue)

    assert nothing(receiver)
    assert get(receiver, dead_lettered=True).dead_letter_reason == "MaxDeliveryCountExceeded"


def test_a_dead_letter_has_its_reason_and_its_source(bus: Bus) -> None:
    queue = bus.queue()
    sender, receiver = bus.sender(queue=queue), bus.receiver(queue=queue)
    sender.send_payload("first")
    sender.send_payload("second")
    receiver.dead_letter(get(receiver), reason="invalid", error_description="n is too small")
    receiver.dead_letter(get(receiver))

    first, second = (get(receiver, dead_lettered=True) for _ in range(2))

    assert (first.body, first.dead_letter_reason) == ("first", "invalid")
    assert {first.dead_letter_source, second.dead_letter_source} == {queue}
    assert first.dead_letter_error_description == "n is too small"
    assert second.dead_letter_reason == "DEADLETTERED_BY_RECEIVER"
    assert second.dead_letter_error_description is None
    receiver.abandon(first)
    assert get(receiver, dead_lettered=True).body == "first"


def test_a_deferred_message_is_received_by_its_number_only(bus: Bus) -> None:
    queue = bus.queue()
    bus.sender(queue=queue).send_payload("later")
    receiver = bus.receiver(queue=queue)
    number = receiver.defer(get(receiver))

    assert nothing(receiver)
    message = receiver.receive_deferred(number)

    assert (message.body, message.sequence_number, message.state) == ("later", number, "deferred")
    receiver.complete(message)
    for unknown in (number, number + 1000):
        with pytest.raises(NoSuchMessageError, match=str(unknown)):
            receiver.receive_deferred(unknown)


def test_a_scheduled_message_comes_when_it_is_due(bus: Bus) -> None:
    queue = bus.queue()
    due = in_seconds(1.5)
    sender = bus.sender(queue=queue)
    sender.schedule(Message(body="later"), due)
    receiver = bus.receiver(queue=queue)

    assert receiver.receive(server_wait_time=0.1) is None
    assert get(receiver).body == "later"
    assert datetime.now(timezone.utc) >= due


def test_a_scheduled_message_is_cancelled_once(bus: Bus) -> None:
    queue = bus.queue()
    sender = bus.sender(queue=queue)
    number = sender.schedule(Message(body="never"), in_seconds(600))
    kept = sender.schedule(Message(body="soon"), in_seconds(1))

    sender.cancel(number)

    for unknown in (number, number + 1000):
        with pytest.raises(NoSuchMessageError, match=str(unknown)):
            sender.cancel(unknown)
    assert kept != number
    receiver = bus.receiver(queue=queue)
    assert get(receiver).body == "soon"
    assert nothing(receiver)


def test_a_message_that_was_never_received_cannot_be_settled(bus: Bus) -> None:
    receiver = bus.receiver(queue=bus.queue())

    with pytest.raises(NotInFlightError, match="m1"):
        receiver.complete(EVERYTHING)
    with pytest.raises(HomingError, match="not received"):
        receiver.complete(replace(EVERYTHING, lock_token="nonsense"))  # noqa: S106


def test_a_lock_that_ran_out_settles_nothing_and_the_message_comes_again(bus: Bus) -> None:
    queue = bus.queue(lock_duration=2.5)
    bus.sender(queue=queue).send_payload("a")
    slow = bus.receiver(queue=queue, max_auto_lock_renew_duration=0)
    quick = bus.receiver(queue=queue)
    late = get(slow)

    again = get(quick)

    assert (again.body, again.delivery_count) == ("a", 2)
    for settle in (slow.complete, slow.abandon, slow.dead_letter, slow.defer, slow.renew_lock):
        with pytest.raises(LeaseLostError, match=str(late.message_id)):
            settle(late)
    quick.complete(again)
    assert nothing(quick)


def test_a_lock_is_renewed_while_the_work_goes_on(bus: Bus) -> None:
    queue = bus.queue(lock_duration=3)
    bus.sender(queue=queue).send_payload("long work")
    busy, idle = bus.receiver(queue=queue), bus.receiver(queue=queue)
    message = get(busy)

    assert idle.receive(server_wait_time=4.5) is None

    busy.complete(message)
    assert nothing(idle)


def test_a_lock_can_be_renewed_by_hand(bus: Bus) -> None:
    queue = bus.queue(lock_duration=10)  # a busy machine is late with what it does in time
    bus.sender(queue=queue).send_payload("a")
    receiver = bus.receiver(queue=queue, max_auto_lock_renew_duration=0)
    message = get(receiver)
    assert message.locked_until is not None
    time.sleep(4)

    until = receiver.renew_lock(message)

    assert until > message.locked_until
    time.sleep(6.2)
    receiver.complete(message)


def test_what_outlives_its_time_is_a_dead_letter(bus: Bus) -> None:
    queue = bus.queue(default_message_time_to_live=0.5)
    sender, receiver = bus.sender(queue=queue), bus.receiver(queue=queue)
    sender.send(Message(body="by itself", time_to_live=0.2))
    sender.send(Message(body="by its queue", time_to_live=60))
    time.sleep(0.8)

    assert nothing(receiver)
    dead = [get(receiver, dead_lettered=True) for _ in range(2)]

    assert {message.body for message in dead} == {"by itself", "by its queue"}
    assert {message.dead_letter_reason for message in dead} == {"TTLExpiredException"}


def test_what_outlives_its_time_is_dropped_where_the_queue_says_so(bus: Bus) -> None:
    queue = bus.queue(dead_lettering_on_message_expiration=False)
    sender, receiver = bus.sender(queue=queue), bus.receiver(queue=queue)
    sender.send(Message(body="old", time_to_live=0.2))
    time.sleep(0.5)

    assert nothing(receiver)
    assert nothing(receiver, dead_lettered=True)


def test_a_duplicate_within_the_window_is_taken_once(bus: Bus) -> None:
    queue = bus.queue(requires_duplicate_detection=True, duplicate_detection_window=60)
    sender, receiver = bus.sender(queue=queue), bus.receiver(queue=queue)
    sender.send(Message(body="first", message_id="m1"))
    sender.send(Message(body="again", message_id="m1"))
    message = get(receiver)
    assert message.body == "first"
    receiver.complete(message)
    sender.send(Message(body="again", message_id="m1"))

    assert nothing(receiver)


def test_a_duplicate_that_is_scheduled_has_the_number_of_the_first(bus: Bus) -> None:
    queue = bus.queue(requires_duplicate_detection=True, duplicate_detection_window=60)
    sender, receiver = bus.sender(queue=queue), bus.receiver(queue=queue)
    first = sender.schedule(Message(body="first", message_id="m1"), in_seconds(600))

    assert sender.schedule(Message(body="again", message_id="m1"), in_seconds(0)) == first

    assert nothing(receiver)
    sender.cancel(first)


def test_a_message_the_service_schedules_without_a_number_is_an_error_of_ours(
    servicebus: ServiceBusServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus = Bus(servicebus.connection_string)
    sender = bus.sender(queue=bus.queue())
    monkeypatch.setattr(ServiceBusSender, "schedule_messages", lambda *_: [])

    with pytest.raises(StoreError, match=r"number.*m1"):
        sender.schedule(Message(body="a", message_id="m1"), in_seconds(600))
    bus.close()


def test_without_duplicate_detection_two_messages_may_have_one_id(bus: Bus) -> None:
    queue = bus.queue()
    sender, receiver = bus.sender(queue=queue), bus.receiver(queue=queue)
    sender.send(Message(body="first", message_id="m1"))
    sender.send(Message(body="second", message_id="m1"))

    assert [get(receiver).body for _ in range(2)] == ["first", "second"]


def test_a_closed_sender_or_receiver_says_so(bus: Bus) -> None:
    queue = bus.queue()
    sender, receiver = bus.sender(queue=queue), bus.receiver(queue=queue)
    for closed in (sender, receiver, sender, receiver):
        closed.close()

    with pytest.raises(HomingError, match="closed"):
        sender.send_payload("a")
    with pytest.raises(HomingError, match="closed"):
        receiver.receive(server_wait_time=0)


@pytest.mark.parametrize("value", ["x" * 129, "a\0b", "\ud800"], ids=["long", "nul", "surrogate"])
@pytest.mark.parametrize("name", ["message_id", "session_id", "reply_to_session_id", "partition_key"])
def test_a_text_that_not_every_entity_takes_is_refused_when_it_is_sent(bus: Bus, name: str, value: str) -> None:
    topic = bus.topic()
    with pytest.raises(UnstorableContentError, match=name):
        bus.sender(topic=topic).send(Message(body=1, **{name: value}))


def test_large_numbers_and_fractions_of_a_second_arrive_as_they_were_sent(bus: Bus) -> None:
    queue = bus.queue()
    numbers = {"ms": 1_700_000_000_000, "least": -(2**63), "most": 2**63 - 1, "small": 5, "yes": True}
    bus.sender(queue=queue).send(Message(body=1, time_to_live=20.5, application_properties=numbers))

    message = get(bus.receiver(queue=queue))

    assert message.application_properties == numbers
    assert message.application_properties["yes"] is True
    assert message.time_to_live == 20.5


def test_a_dead_letter_is_not_deferred_where_nobody_could_find_it(bus: Bus) -> None:
    queue = bus.queue()
    bus.sender(queue=queue).send_payload("a")
    receiver = bus.receiver(queue=queue)
    receiver.dead_letter(get(receiver), reason="no")
    dead = get(receiver, dead_lettered=True)

    with pytest.raises(ConfigurationError, match="dead letter"):
        receiver.defer(dead)

    receiver.abandon(dead)
    assert get(receiver, dead_lettered=True).body == "a"


@dataclass
class Inverse:
    n: int

    def __post_init__(self) -> None:
        self.inverse = 1 / self.n


def test_a_body_whose_type_raises_is_abandoned(bus: Bus) -> None:
    queue = bus.queue()
    bus.sender(queue=queue).send_payload({"n": 0})
    receiver = bus.receiver(queue=queue)

    with pytest.raises(BindingError, match="ZeroDivisionError"):
        receiver.receive(Inverse, server_wait_time=20)

    assert get(receiver).body == {"n": 0}


@pytest.mark.parametrize("life", ["5", 1e15, float("inf"), float("nan"), True])
def test_a_time_to_live_that_is_none_is_refused(bus: Bus, life: Any) -> None:
    with pytest.raises(UnstorableContentError, match="time_to_live"):
        bus.sender(queue=bus.queue()).send(Message(body=1, time_to_live=life))


@pytest.mark.parametrize("properties", [5, "ab", [1]])
def test_properties_that_are_no_mapping_are_refused(properties: Any) -> None:
    with pytest.raises(UnstorableContentError, match="application_properties"):
        Message(body=1, application_properties=properties)


def test_an_administrator_is_closed_once(bus: Bus) -> None:
    queue = bus.queue()
    receiver = bus.receiver(queue=queue)
    other = Administrator(bus.connection)
    for _ in range(5):
        other.close()

    bus.sender(queue=queue).send_payload("a")
    receiver.complete(get(receiver))
    receiver.close()  # of which the embedded bus would know nothing any more
