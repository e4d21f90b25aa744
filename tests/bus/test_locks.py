"""Locks: kept while the work or the waiting they protect goes on, and no longer; lost, they settle nothing."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from homing.bus import BusListener, Message, ReceiveMode
from homing.errors import LeaseLostError
from tests.bus.conftest import AT_ONCE, Bus, get, nothing
from tests.servicebus import management
from tests.servicebus.server import ServiceBusServer

#: Seconds; a busy machine is late with a renewal, and the first one connects.
LOCK, LONGER = 4, 6


def test_a_session_is_kept_while_its_receiver_waits_for_longer_than_the_lock(bus: Bus) -> None:
    queue = bus.queue(requires_session=True, lock_duration=LOCK)
    receiver = bus.receiver(queue=queue, session_id="s", max_auto_lock_renew_duration=0)

    assert receiver.receive(server_wait_time=LONGER) is None

    bus.sender(queue=queue).send(Message(body="at last", session_id="s"))
    assert get(receiver).body == "at last"


def test_a_session_is_kept_between_two_receives(bus: Bus) -> None:
    queue = bus.queue(requires_session=True, lock_duration=LOCK)
    receiver = bus.receiver(queue=queue, session_id="s")
    assert receiver.receive(server_wait_time=0.2) is None

    time.sleep(LONGER)

    bus.sender(queue=queue).send(Message(body="a", session_id="s"))
    assert get(receiver).body == "a"


@pytest.mark.parametrize("mode", list(ReceiveMode), ids=lambda mode: mode.value)
def test_a_session_that_is_not_kept_is_free_for_others(bus: Bus, mode: ReceiveMode) -> None:
    queue = bus.queue(requires_session=True, lock_duration=LOCK)
    idle = bus.receiver(queue=queue, session_id="s", max_auto_lock_renew_duration=0, receive_mode=mode)
    assert idle.receive(server_wait_time=0.2) is None
    time.sleep(LONGER)

    bus.sender(queue=queue).send(Message(body="a", session_id="s"))

    assert get(bus.receiver(queue=queue, session_id="s")).body == "a"
    with pytest.raises(LeaseLostError, match="session"):
        idle.receive(server_wait_time=1)


def test_a_session_that_was_waited_for_is_not_renewed_without_end(
    servicebus: ServiceBusServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    renewals: list[float] = []
    renew = management._OPERATIONS["renew-session-lock"]

    def counted(*arguments: Any) -> Any:
        renewals.append(time.monotonic())
        return renew(*arguments)

    monkeypatch.setitem(management._OPERATIONS, "renew-session-lock", counted)
    bus = Bus(servicebus.connection_string)
    queue = bus.queue(requires_session=True, lock_duration=3)
    sender, receiver = bus.sender(queue=queue), bus.receiver(queue=queue, session_id="s")
    sender.send(Message(body="so that it is connected", session_id="other"))
    assert receiver.receive(server_wait_time=2.7) is None
    sender.send(Message(body="just before the lock ends", session_id="s"))
    message = get(receiver)
    renewals.clear()
    began = time.monotonic()

    time.sleep(2.5)

    most = 2 + (time.monotonic() - began)  # which a busy machine makes longer
    assert 1 <= len(renewals) <= most, "each third of a lock's duration, which is a second"
    receiver.complete(message)
    bus.close()


def test_work_in_a_session_keeps_its_lock(bus: Bus) -> None:
    queue = bus.queue(requires_session=True, lock_duration=LOCK)
    bus.sender(queue=queue).send_batch([Message(body=n, session_id="s") for n in range(2)])
    receiver = bus.receiver(queue=queue, session_id="s")
    first = get(receiver)

    time.sleep(LONGER)

    receiver.complete(first)
    assert get(receiver).body == 1


def test_work_on_a_deferred_message_of_a_session_keeps_its_lock(bus: Bus) -> None:
    queue = bus.queue(requires_session=True, lock_duration=LOCK)
    bus.sender(queue=queue).send(Message(body="later", session_id="s"))
    with bus.receiver(queue=queue, session_id="s") as first:
        number = first.defer(get(first))
    receiver = bus.receiver(queue=queue, session_id="s")
    message = receiver.receive_deferred(number)

    time.sleep(LONGER)

    receiver.complete(message)


def test_work_in_a_listener_keeps_its_lock(bus: Bus) -> None:
    queue = bus.queue(lock_duration=LOCK)
    bus.sender(queue=queue).send_payload("long work")
    counts: list[int] = []
    done = threading.Event()

    def handle(message: Message) -> None:
        counts.append(message.delivery_count)
        time.sleep(LONGER)
        done.set()

    listener = BusListener(bus.connection, queue=queue, retry=AT_ONCE)
    listener.attach(handle)
    other = bus.receiver(queue=queue)
    with listener:
        assert done.wait(30)

    assert counts == [1]
    assert nothing(other)


def test_renewing_ends_when_it_was_said_to(bus: Bus) -> None:
    queue = bus.queue(lock_duration=LOCK)
    bus.sender(queue=queue).send_payload("a")
    slow = bus.receiver(queue=queue, max_auto_lock_renew_duration=LONGER)
    quick = bus.receiver(queue=queue)
    assert nothing(quick, dead_lettered=True)  # connected by now
    late = get(slow)
    began = time.monotonic()

    again = get(quick, server_wait_time=60)

    assert time.monotonic() - began > LONGER - 1, "it was renewed, for longer than the lock"
    assert again.delivery_count == 2
    with pytest.raises(LeaseLostError):
        slow.complete(late)
    quick.complete(again)


def test_a_lock_lost_at_the_service_is_never_a_silent_success(servicebus: ServiceBusServer) -> None:
    bus = Bus(servicebus.connection_string)
    queue = bus.queue()
    bus.sender(queue=queue).send(Message(body="a", message_id="m1"))
    receiver = bus.receiver(queue=queue)
    for settle in (receiver.complete, receiver.abandon, receiver.dead_letter, receiver.defer, receiver.renew_lock):
        message = get(receiver)
        # As after a failover: the service has forgotten the lock, the client has not heard of it.
        (entry,) = servicebus.broker.queues[queue].entries.values()
        servicebus.call(lambda entry=entry: setattr(entry, "token", None))

        with pytest.raises(LeaseLostError, match="m1"):
            settle(message)

    assert get(receiver).body == "a"
    bus.close()
