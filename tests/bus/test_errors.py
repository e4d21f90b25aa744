"""What is done wrongly, or too late: an error of our tree on both buses, and every message where it was."""

from __future__ import annotations

import time
from collections.abc import Callable
from copy import deepcopy
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from homing.bus import Message, MessageBatch, MessageReceiver, ReceiveMode
from homing.errors import (
    HomingError,
    NoSuchEntityError,
    NoSuchMessageError,
    NotInFlightError,
    TooLargeError,
)
from tests.bus.conftest import Bus, get, nothing

SETTLING: dict[str, Callable[[MessageReceiver, Message], Any]] = {
    "complete": MessageReceiver.complete,
    "abandon": MessageReceiver.abandon,
    "dead_letter": MessageReceiver.dead_letter,
    "defer": MessageReceiver.defer,
}


def soon(seconds: float = 0.0) -> datetime:
    return datetime.now(timezone.utc) + timedelta(seconds=seconds)


@pytest.mark.parametrize("first", list(SETTLING))
def test_a_second_settlement_is_refused_and_the_first_one_stands(bus: Bus, first: str) -> None:
    queue = bus.queue()
    bus.sender(queue=queue).send(Message(body="a", message_id="m1"))
    receiver = bus.receiver(queue=queue)
    message = get(receiver)

    SETTLING[first](receiver, message)

    for settle in (*SETTLING.values(), MessageReceiver.renew_lock):
        with pytest.raises(NotInFlightError, match="m1"):
            settle(receiver, message)
    if first == "abandon":
        assert get(receiver).body == "a"
    elif first == "defer":
        assert message.sequence_number is not None
        assert receiver.receive_deferred(message.sequence_number).body == "a"
    else:
        assert nothing(receiver)
    if first == "dead_letter":
        assert get(receiver, dead_lettered=True).body == "a"
    assert nothing(receiver, dead_lettered=True)


def test_settling_what_was_received_and_deleted_is_refused_and_takes_nothing_else(bus: Bus) -> None:
    queue = bus.queue()
    bus.sender(queue=queue).send_batch([Message(body="first"), Message(body="second")])
    deleting = bus.receiver(queue=queue, receive_mode=ReceiveMode.RECEIVE_AND_DELETE)
    message = get(deleting)

    for settle in (*SETTLING.values(), MessageReceiver.renew_lock):
        with pytest.raises(NotInFlightError, match="RECEIVE_AND_DELETE"):
            settle(deleting, message)

    deleting.close()
    assert (message.body, get(bus.receiver(queue=queue)).body) == ("first", "second")


def test_what_was_received_and_deleted_does_not_come_again_when_its_lock_would_have_ended(bus: Bus) -> None:
    queue = bus.queue(lock_duration=1.0)
    bus.sender(queue=queue).send_batch([Message(body="first"), Message(body="second")])
    keeping = bus.receiver(queue=queue)
    deferred = keeping.defer(get(keeping))
    deleting = bus.receiver(queue=queue, receive_mode=ReceiveMode.RECEIVE_AND_DELETE)

    assert get(deleting).body == "second"
    assert deleting.receive_deferred(deferred).body == "first"
    time.sleep(1.2)

    assert nothing(bus.receiver(queue=queue))
    with pytest.raises(NoSuchMessageError):
        bus.receiver(queue=queue).receive_deferred(deferred)


def test_cancelling_what_is_due_already_is_refused_and_it_is_delivered(bus: Bus) -> None:
    queue = bus.queue()
    sender, receiver = bus.sender(queue=queue), bus.receiver(queue=queue)
    number = sender.schedule(Message(body="due"), soon(0.3))
    receiver.abandon(get(receiver))

    with pytest.raises(NoSuchMessageError, match=str(number)):
        sender.cancel(number)

    assert get(receiver).body == "due"


@pytest.mark.parametrize("number", ["7", 1.5, None, True, -1, 2**63])
def test_what_is_no_sequence_number_is_refused(bus: Bus, number: Any) -> None:
    queue = bus.queue()

    with pytest.raises(NoSuchMessageError, match="sequence number"):
        bus.sender(queue=queue).cancel(number)
    with pytest.raises(NoSuchMessageError, match="sequence number"):
        bus.receiver(queue=queue).receive_deferred(number)


def test_a_message_too_large_to_schedule_is_refused(bus: Bus) -> None:
    queue = bus.queue()
    sender = bus.sender(queue=queue)

    with pytest.raises(TooLargeError, match="bytes"):
        sender.schedule(Message(body="x" * 300_000), soon())

    sender.schedule(Message(body="small"), soon())
    receiver = bus.receiver(queue=queue)
    assert get(receiver).body == "small"
    assert nothing(receiver)


def test_a_batch_with_one_message_the_queue_does_not_take_is_refused_whole(bus: Bus) -> None:
    queue = bus.queue(requires_session=True)
    sender = bus.sender(queue=queue)

    with pytest.raises(HomingError, match="session"):
        sender.send_batch([Message(body="first", session_id="s"), Message(body="no session")])

    assert nothing(bus.receiver(queue=queue, session_id="s"))


def test_every_way_to_a_missing_entity_names_it(bus: Bus) -> None:
    ways: list[Callable[[], Any]] = [
        lambda: bus.sender(queue="no-such").send_payload("a"),
        lambda: bus.sender(topic="no-such").send_batch([Message(body=1), Message(body=2)]),
        lambda: bus.sender(queue="no-such").schedule(Message(body="a"), soon(60)),
        lambda: bus.sender(queue="no-such").cancel(1),
        lambda: bus.receiver(queue="no-such").receive_batch(5, server_wait_time=0.2),
        lambda: bus.receiver(queue="no-such").receive_payload(server_wait_time=0.2),
        lambda: bus.receiver(queue="no-such").receive_deferred(1),
        lambda: bus.receiver(queue="no-such").receive(server_wait_time=0.2, dead_lettered=True),
    ]

    for way in ways:
        with pytest.raises(NoSuchEntityError, match="no-such"):
            way()


def test_nothing_that_is_sent_is_changed(bus: Bus) -> None:
    queue = bus.queue()
    message = Message(body={"list": [1, {"a": None}]}, application_properties={"k": "v"}, time_to_live=60)
    batch = MessageBatch([message, Message(body=b"raw")])
    before, batch_before = deepcopy(message), deepcopy(batch)
    sender, receiver = bus.sender(queue=queue), bus.receiver(queue=queue)

    sender.send(message)
    sender.send_batch(batch)
    sender.schedule(message, soon())

    assert (message, batch) == (before, batch_before)
    got = [get(receiver) for _ in range(4)]
    assert len({one.message_id for one in got}) == 4, "each got an id of its own, and the caller's none"
