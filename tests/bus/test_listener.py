"""BusListener: auto-complete, real concurrency, errors that are told, and stopping."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from homing.bus import NEXT_SESSION, BusListener, Caller, Message, MessageReceiver, ReceiveMode
from homing.errors import ConfigurationError, NoSuchEntityError
from tests.bus.conftest import AT_ONCE, Bus, get, nothing


def until(true: Callable[[], Any], timeout: float = 30.0) -> None:
    deadline = time.monotonic() + timeout
    while not true():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


class Notes:
    """A service that remembers what it was told."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.errors: list[BaseException] = []

    def on_message(self, message: Message) -> None:
        self.messages.append(message)
        if message.body == "bad":
            raise ValueError("no good")

    def on_error(self, error: BaseException) -> None:
        self.errors.append(error)


def test_messages_are_completed_and_failing_ones_become_dead_letters(bus: Bus) -> None:
    queue = bus.queue(max_delivery_count=2)
    bus.sender(queue=queue).send_batch([Message(body=body) for body in ("a", "bad", "b")])
    notes = Notes()
    listener = BusListener(bus.connection, queue=queue, retry=AT_ONCE)
    listener.attach(notes)

    with listener:
        until(lambda: len(notes.messages) >= 4)

    assert sorted(str(message.body) for message in notes.messages) == ["a", "b", "bad", "bad"]
    assert [str(error) for error in notes.errors] == ["no good", "no good"]
    receiver = bus.receiver(queue=queue)
    assert nothing(receiver)
    assert get(receiver, dead_lettered=True).body == "bad"


def test_a_message_for_which_a_service_returns_a_coroutine_that_nobody_awaits_is_not_completed(bus: Bus) -> None:
    queue = bus.queue(max_delivery_count=1)
    bus.sender(queue=queue).send(Message(body="a"))

    class Service(Notes):
        async def on_message(self, message: Message) -> None:  # type: ignore[override]
            self.messages.append(message)

    service = Service()
    listener = BusListener(bus.connection, queue=queue, retry=AT_ONCE)
    listener.attach(service)
    with listener:
        until(lambda: service.errors)

    assert "was not awaited" in str(service.errors[0])
    assert get(bus.receiver(queue=queue), dead_lettered=True).body == "a"


def test_so_many_messages_are_handled_at_the_same_time(bus: Bus) -> None:
    queue = bus.queue()
    bus.sender(queue=queue).send_batch([Message(body=n) for n in range(3)])
    together = threading.Barrier(3)
    done: list[Any] = []

    def handle(message: Message) -> None:
        together.wait(30)  # passes only when three are inside at once
        done.append(message.body)

    listener = BusListener(bus.connection, queue=queue, max_concurrent_calls=3, retry=AT_ONCE)
    listener.attach(handle)
    with listener:
        until(lambda: len(done) == 3)

    assert sorted(done) == [0, 1, 2]
    assert nothing(bus.receiver(queue=queue))


def test_a_service_may_settle_by_itself(bus: Bus) -> None:
    queue = bus.queue()
    bus.sender(queue=queue).send_batch([Message(body=body) for body in ("dead", "deferred", "done")])
    numbers: dict[str, Any] = {}

    def handle(message: Message, caller: Caller) -> None:
        if message.body == "dead":
            caller.dead_letter(reason="mine")
        elif message.body == "deferred":
            numbers["deferred"] = caller.defer()
        else:
            caller.complete()
        numbers[message.body] = numbers.get(message.body, True)

    listener = BusListener(bus.connection, queue=queue, auto_complete=False, retry=AT_ONCE)
    listener.attach(handle)
    with listener:
        until(lambda: len(numbers) == 3)

    receiver = bus.receiver(queue=queue)
    assert nothing(receiver)
    assert get(receiver, dead_lettered=True).dead_letter_reason == "mine"
    assert receiver.receive_deferred(numbers["deferred"]).body == "deferred"


def test_a_missing_queue_is_told_and_listened_to_once_it_is_there(bus: Bus) -> None:
    notes = Notes()
    name = bus.queue()
    bus.admin.delete_queue(name)
    listener = BusListener(bus.connection, queue=name, retry=AT_ONCE)
    listener.attach(notes)
    listener.start()
    until(lambda: notes.errors)
    assert isinstance(notes.errors[0], NoSuchEntityError)

    bus.admin.create_queue(name)
    bus.sender(queue=name).send_payload("a")
    until(lambda: notes.messages)

    listener.graceful_stop()


def test_an_immediate_stop_settles_nothing(bus: Bus) -> None:
    queue = bus.queue(lock_duration=1.5)
    bus.sender(queue=queue).send_payload("a")
    started, finish = threading.Event(), threading.Event()

    def handle(message: Message) -> None:
        started.set()
        finish.wait(30)

    listener = BusListener(bus.connection, queue=queue, max_auto_lock_renew_duration=0, retry=AT_ONCE)
    listener.attach(handle)
    listener.start()
    assert started.wait(30)
    listener.immediate_stop()
    finish.set()

    assert get(bus.receiver(queue=queue)).delivery_count == 2


def test_a_listener_started_again_leaves_what_was_stopped_alone(bus: Bus) -> None:
    queue = bus.queue(lock_duration=2)
    bus.sender(queue=queue).send_payload("a")
    counts: list[int] = []
    finish = threading.Event()

    def handle(message: Message) -> None:
        counts.append(message.delivery_count)
        if len(counts) == 1:
            finish.wait(30)

    listener = BusListener(bus.connection, queue=queue, max_auto_lock_renew_duration=0, retry=AT_ONCE)
    listener.attach(handle)
    listener.start()
    until(lambda: counts)
    listener.immediate_stop()
    with listener:
        finish.set()  # the service returns, and its message is not settled all the same
        until(lambda: len(counts) == 2)

    assert counts == [1, 2]


def test_settling_that_fails_in_whatever_way_is_told_and_the_listener_goes_on(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = bus.queue(lock_duration=2)
    notes = Notes()
    complete, failed = MessageReceiver.complete, []

    def fails_once(receiver: MessageReceiver, message: Message) -> None:
        if not failed:
            failed.append(message)
            raise RuntimeError("a fault of the driver")
        complete(receiver, message)

    monkeypatch.setattr(MessageReceiver, "complete", fails_once)
    bus.sender(queue=queue).send_batch([Message(body=body) for body in ("a", "b")])
    listener = BusListener(bus.connection, queue=queue, max_auto_lock_renew_duration=0, retry=AT_ONCE)
    listener.attach(notes)
    with listener:
        until(lambda: len(notes.messages) == 3)

    assert [message.body for message in notes.messages] == ["a", "b", "a"]
    assert [str(error) for error in notes.errors] == ["a fault of the driver"]


def test_a_listener_is_set_up_rightly_or_refused(bus: Bus) -> None:
    queue = bus.queue()
    with pytest.raises(ConfigurationError, match="max_concurrent_calls"):
        BusListener(bus.connection, queue=queue, max_concurrent_calls=0)
    with pytest.raises(ConfigurationError, match="either a queue or a topic"):
        BusListener(bus.connection)
    listener = BusListener(bus.connection, queue=queue)
    with pytest.raises(ConfigurationError, match="attach"):
        listener.start()
    with pytest.raises(ConfigurationError, match="on_message"):
        listener.attach(5)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="detach"):
        listener.detach(Notes())
    listener.attach(Notes())
    with pytest.raises(ConfigurationError, match="attached"):
        listener.attach(Notes())


def test_what_was_received_and_deleted_is_not_settled(bus: Bus) -> None:
    queue = bus.queue()
    bus.sender(queue=queue).send_batch([Message(body=body) for body in ("a", "b")])
    notes = Notes()
    listener = BusListener(bus.connection, queue=queue, receive_mode=ReceiveMode.RECEIVE_AND_DELETE, retry=AT_ONCE)
    listener.attach(notes)

    with listener:
        until(lambda: len(notes.messages) == 2)

    assert notes.errors == []


def test_one_session_after_the_other_is_listened_to(bus: Bus) -> None:
    queue = bus.queue(requires_session=True)
    bus.sender(queue=queue).send_batch([Message(body=name, session_id=name) for name in "abc"])
    notes = Notes()
    listener = BusListener(bus.connection, queue=queue, session_id=NEXT_SESSION, retry=AT_ONCE)
    listener.attach(notes)

    with listener:
        until(lambda: len(notes.messages) == 3)

    assert sorted(message.body for message in notes.messages) == ["a", "b", "c"]
    assert notes.errors == []


def test_a_service_may_stop_its_own_listener(bus: Bus) -> None:
    queue = bus.queue()
    bus.sender(queue=queue).send_batch([Message(body=body) for body in ("a", "b")])
    listener = BusListener(bus.connection, queue=queue, retry=AT_ONCE)
    notes = Notes()
    seen = notes.on_message
    notes.on_message = lambda message: (listener.graceful_stop(), seen(message))  # type: ignore[method-assign,func-returns-value]
    listener.attach(notes)
    listener.start()

    until(lambda: notes.messages)
    listener.graceful_stop()

    assert notes.errors == []
    receiver = bus.receiver(queue=queue)
    assert get(receiver).body == "b"
    assert nothing(receiver), "a was completed"


def test_a_graceful_stop_waits_for_all_together_no_longer_than_it_may(bus: Bus) -> None:
    queue = bus.queue()
    bus.sender(queue=queue).send_batch([Message(body=n) for n in range(3)])
    inside, finish = threading.Barrier(4), threading.Event()

    def handle(message: Message) -> None:
        inside.wait(30)
        finish.wait(30)

    listener = BusListener(bus.connection, queue=queue, max_concurrent_calls=3, retry=AT_ONCE)
    listener.attach(handle)
    listener.start()
    inside.wait(30)
    began = time.monotonic()
    listener.graceful_stop(1)
    took = time.monotonic() - began
    finish.set()
    listener.graceful_stop()

    assert 0.9 < took < 2
