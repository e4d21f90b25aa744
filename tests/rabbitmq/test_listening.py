"""A listener on a real broker: no ids kept apart, no rescheduling, leases kept by the consumer."""

from __future__ import annotations

import threading
from collections import Counter
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
from homing.message import AVAILABLE, SCHEDULED
from homing.pipeline import read_record
from homing.stores.rabbitmq.store import RabbitStore
from tests.rabbitmq.conftest import eventually

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


def test_good_messages_pass_any_number_that_wait_for_a_retry(
    store: RabbitStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("homing.listener.board.MAX_HELD", 2)
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
