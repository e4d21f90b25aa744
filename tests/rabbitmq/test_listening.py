"""A listener on a real broker: no ids kept apart, no rescheduling, leases kept by the consumer."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from homing import (
    HandlerChain,
    ListenerConfig,
    MessageContext,
    PartialFailure,
    StoreListener,
    destination,
    open_store,
)
from homing.failure import read_record
from homing.message import AVAILABLE, SCHEDULED
from homing.stores.rabbitmq.store import RabbitStore
from homing.testing.conformance.waiting import eventually

pytestmark = pytest.mark.services


def started(store: RabbitStore, service: Any, **options: Any) -> StoreListener:
    quick = {"polling_interval": 0.05, "retry_interval": 0.05, **options}
    listener = StoreListener(store, ListenerConfig(**quick))
    listener.attach(service)
    listener.start()
    return listener


def test_a_batch_is_delivered_but_for_what_fails_which_is_dead_lettered(store: RabbitStore) -> None:
    seen: Counter[int] = Counter()

    class Service:
        def on_messages(self, numbers: list[int]) -> None:
            seen.update(numbers)
            raise PartialFailure({place: "odd" for place, number in enumerate(numbers) if number % 2})

    with open_store("memory://rabbit-listening-dead") as dead:
        store.store_many(range(10))
        listener = started(store, Service(), max_retries=1, dead_letter_store=dead)
        try:
            eventually(lambda: (listener.metrics().processed, listener.metrics().dead_lettered) == (5, 5) or None)
        finally:
            listener.graceful_stop(20)
        assert sorted(message.content for message in dead.browse()) == [1, 3, 5, 7, 9]
    assert seen == {number: 1 + number % 2 for number in range(10)}
    assert store.lengths()[AVAILABLE] == 0


#: A process that dies right before it would acknowledge: what it did before is durable.
DYING = """
import os, sys, time
from homing import ListenerConfig, StoreListener, open_store
store, outcome = open_store(sys.argv[1]), sys.argv[2]
def deliver(content):
    if outcome == "dead":
        raise OSError("down")
    with open(sys.argv[3], "a") as file:
        file.write("delivered")
def die(*arguments):
    os._exit(9)
store.acknowledge = die
listener = StoreListener(store, ListenerConfig(max_retries=0, dead_letter_store=open_store(sys.argv[4])))
listener.attach(deliver)
listener.start()
time.sleep(60)
"""


@pytest.mark.parametrize("outcome", ["delivered", "dead"])
def test_a_listener_that_dies_before_it_acknowledges_may_leave_a_message_delivered_and_dead_lettered(
    store: RabbitStore, url: str, tmp_path: Path, outcome: str
) -> None:
    took, dead_url, seen = tmp_path / "took", f"sqlite:///{tmp_path}/dead.db?store=dead", list[Any]()
    store.store("x")
    died = subprocess.run([sys.executable, "-c", DYING, url, outcome, str(took), dead_url], timeout=60, check=False)
    assert died.returncode == 9

    def deliver_unless_it_was_delivered(content: Any) -> None:
        if outcome == "delivered":
            raise OSError
        seen.append(content)

    with open_store(dead_url) as dead:
        listener = started(store, deliver_unless_it_was_delivered, max_retries=0, dead_letter_store=dead)
        try:
            eventually(lambda: sum((listener.metrics().processed, listener.metrics().dead_lettered)) == 1 or None)
        finally:
            listener.graceful_stop(20)
        assert (took.exists(), seen) == ((True, []) if outcome == "delivered" else (False, ["x"]))
        assert [letter.content for letter in dead.browse()] == ["x"]


def test_good_messages_pass_any_number_that_wait_for_a_retry(
    store: RabbitStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("homing.listener.in_flight.MAX_HELD", 2)
    seen: list[Any] = []

    def on_message(content: Any) -> None:
        seen.append(content)
        if content != "good":
            raise OSError

    store.store_many([*range(10), "good"])
    listener = started(store, on_message, retry_interval=600)
    try:
        eventually(lambda: listener.metrics().processed == 1 or None)
    finally:
        listener.immediate_stop()
    assert len(seen) == 11


def test_what_a_chain_got_done_waits_at_the_broker_for_the_rest(store: RabbitStore) -> None:
    tried = threading.Event()

    @destination
    def crm(ctx: MessageContext) -> str:
        return "done"

    @destination
    def lake(ctx: MessageContext) -> None:
        tried.set()
        raise OSError("away")

    store.store("order", id="m1")
    with HandlerChain("orders", destinations_flow=[crm, lake]) as chain:
        listener = started(store, chain, retry_interval=3)
        try:
            assert tried.wait(20)
            eventually(lambda: listener.metrics().retried == 1 or None)
        finally:
            listener.immediate_stop()
    assert store.lengths()[SCHEDULED] == 1
    waited = eventually(store.retrieve)
    record = read_record(waited.content)
    assert (record.message.id, record.message.content, record.done) == ("m1", "order", {"crm": "done"})
    assert waited.headers["homing-attempts"] == 1
    store.acknowledge(waited)
