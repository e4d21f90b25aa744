"""Senders, receivers and the store on Service Bus in processes that were forked after they were used."""

from __future__ import annotations

import os
import time
import uuid

import pytest

from homing import open_store
from homing.bus import Message
from homing.errors import HomingError, LeaseLostError, SessionHeldError
from homing.stores.servicebus.store import ServiceBusStore
from tests.bus.conftest import Bus
from tests.forked import fork, went_well
from tests.servicebus.broker import Settings
from tests.servicebus.server import ServiceBusServer

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

EACH = 30


def test_a_child_and_its_parent_send_at_the_same_time_and_lose_nothing(bus: Bus) -> None:
    queue = bus.queue()
    sender, receiver = bus.sender(queue=queue), bus.receiver(queue=queue)

    def send(who: str) -> None:
        for number in range(EACH):
            sender.send(Message(body=f"{who}-{number}"))

    sender.send(Message(body="before"))
    child = fork(lambda: send("child"))
    send("parent")
    assert went_well(child)
    found: set[object] = set()
    deadline = time.monotonic() + 60
    while len(found) < 2 * EACH + 1 and time.monotonic() < deadline:
        message = receiver.receive(server_wait_time=0.5)
        if message is not None:
            found.add(message.body)
            receiver.complete(message)
    assert found == {"before", *(f"{who}-{n}" for who in ("child", "parent") for n in range(EACH))}


def test_a_receiver_works_in_the_child_and_in_the_parent(bus: Bus) -> None:
    queue = bus.queue()
    sender, receiver = bus.sender(queue=queue), bus.receiver(queue=queue)
    sender.send(Message(body="first"))
    first = receiver.receive(server_wait_time=20)
    assert first is not None
    sender.send(Message(body="second"))

    def use() -> bool:
        second = receiver.receive(server_wait_time=20)
        assert second is not None
        receiver.complete(second)
        return bool(second.body == "second")

    assert went_well(fork(use))
    receiver.complete(first)
    assert receiver.receive(server_wait_time=0.5) is None


def test_of_two_children_only_one_gets_the_session_that_both_ask_for(bus: Bus) -> None:
    queue = bus.queue(requires_session=True)
    sender, receiver = bus.sender(queue=queue), bus.receiver(queue=queue, session_id="s")
    for body in ("first", "second"):
        sender.send(Message(body=body, session_id="s"))
    go_on, has_it = os.pipe(), os.pipe()

    def hold() -> bool:
        message = receiver.receive(server_wait_time=20)
        os.write(has_it[1], b"!")
        os.read(go_on[0], 1)
        return message is not None

    def ask_too() -> bool:
        with pytest.raises(SessionHeldError):
            receiver.receive(server_wait_time=1)
        return True

    holder = fork(hold)
    try:
        os.read(has_it[0], 1)
        assert went_well(fork(ask_too))
    finally:
        os.write(go_on[1], b"!")
        assert went_well(holder)


def test_the_store_on_service_bus_connects_for_itself_in_a_child(servicebus: ServiceBusServer) -> None:
    name = f"q{uuid.uuid4().hex[:12]}"
    servicebus.call(lambda: servicebus.broker.make_queue(name, Settings(lock_duration=30.0, max_delivery_count=3)))
    store = open_store(f"{servicebus.url}?store={name}")
    assert isinstance(store, ServiceBusStore)
    with store:
        store.store("a", id="1")
        message = store.retrieve()
        assert message is not None

        def use() -> bool:
            with pytest.raises(LeaseLostError, match="another process"):
                store.acknowledge(message)
            for number in range(EACH):
                store.store(number, id=f"child-{number}")
            return True

        child = fork(use)
        for number in range(EACH):
            store.store(number, id=f"parent-{number}")
        assert went_well(child)
        store.acknowledge(message)
        found: set[str] = set()
        deadline = time.monotonic() + 60
        while len(found) < 2 * EACH and time.monotonic() < deadline:
            try:
                one = store.retrieve()
            except HomingError as error:
                pytest.fail(f"the parent's connection was harmed: {error}")
            if one is not None:
                found.add(one.id)
                store.acknowledge(one)
    assert found == {f"{who}-{n}" for who in ("child", "parent") for n in range(EACH)}
