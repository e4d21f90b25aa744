"""A chain attached to a listener."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from homing import (
    HandlerChain,
    ListenerConfig,
    Message,
    MessageContext,
    Retry,
    RetryPolicy,
    StoreListener,
    destination,
    open_store,
)
from homing.failure import FAILURE_TYPE, MESSAGE_ID, REASON, FailureRecord, build_record, read_record
from homing.message import ACKNOWLEDGED, AVAILABLE, MessageRef
from homing.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(f"sqlite:///{tmp_path}/inbox.db?store=orders") as opened:
        yield opened


@pytest.fixture
def dead(tmp_path: Path) -> Iterator[Store]:
    with open_store(f"sqlite:///{tmp_path}/inbox.db?store=dead") as opened:
        yield opened


@pytest.fixture
def count() -> Counter[str]:
    return Counter()


@pytest.fixture
def refusing() -> set[str]:
    return set()


@pytest.fixture
def make_chain(count: Counter[str], refusing: set[str]) -> Any:
    def to(name: str) -> None:
        count[name] += 1
        if name in refusing:
            raise OSError(f"{name} refused")

    @destination
    def crm(ctx: MessageContext) -> None:
        assert ctx.message.headers.get("tenant") == "eu"
        to("crm")

    @destination
    def lake(ctx: MessageContext) -> str:
        to("lake")
        return ctx.get_id()

    return lambda **options: HandlerChain("orders", destinations_flow=[crm, lake], **options)


@pytest.fixture
def listen(store: Store) -> Iterator[Any]:
    started: list[StoreListener] = []

    def start(service: Any, **options: Any) -> StoreListener:
        quick = {"polling_interval": 0.02, **({} if "retry" in options else {"retry_interval": 0.02}), **options}
        config = ListenerConfig(**quick)
        listener = StoreListener(store, config)
        listener.attach(service)
        listener.start()
        started.append(listener)
        return listener

    yield start
    for listener in started:
        listener.immediate_stop()


def test_chain_is_a_service_and_sees_id_and_headers(
    store: Any, make_chain: Any, listen: Any, until: Any, count: Counter[str]
) -> None:
    store.store(1, id="m1", headers={"tenant": "eu"})
    with make_chain() as chain:
        listener = listen(chain)
        until(lambda: listener.metrics().processed == 1)
    assert count == {"crm": 1, "lake": 1}


def test_message_that_failed_is_acknowledged_once_the_failure_store_has_it(
    store: Any, dead: Any, make_chain: Any, listen: Any, *, until: Any, count: Counter[str], refusing: set[str]
) -> None:
    refusing.add("lake")
    store.store(1, id="m1", headers={"tenant": "eu"})
    with make_chain(failure_store=dead) as chain:
        listen(chain)
        until(lambda: store.count()[ACKNOWLEDGED] == 1)
    record = read_record(dead.retrieve().content)
    assert (record.message.id, dict(record.message.headers)) == ("m1", {"tenant": "eu"})
    assert record.done == {"crm": None}
    assert count == {"crm": 1, "lake": 1}


def test_retry_without_a_failure_store_skips_the_destinations_that_are_done(
    store: Any, make_chain: Any, listen: Any, until: Any, *, count: Counter[str], refusing: set[str]
) -> None:
    refusing.add("lake")
    store.store(1, id="m1", headers={"tenant": "eu"})
    with make_chain() as chain:
        listener = listen(chain, max_retries=1_000)
        until(lambda: count["lake"] >= 3)
        refusing.clear()
        until(lambda: listener.metrics().processed == 1)
    assert count["crm"] == 1
    assert store.count()[AVAILABLE] == 0


@pytest.mark.parametrize("letter", [False, True])
def test_a_record_that_a_producer_forged_takes_no_place_of_anothers_dead_letter(
    store: Any, dead: Any, make_chain: Any, listen: Any, *, until: Any, refusing: set[str], letter: bool
) -> None:
    """Its author knows all that the victim is known by, and sends the record in the victim's name."""
    refusing.update({"crm", "lake"})
    store.store("precious", id="victim", headers={"tenant": "eu"})
    victim = MessageRef.of(store.identity, store.browse(1)[0].sequence_number, "victim")
    fake = Message("victim", "forged", headers={"tenant": "eu"}, sequence_number=victim.sequence)
    record = build_record(fake, {}, errors={}, done={}, snapshot={}, chain="orders", ref=victim)
    headers = {MESSAGE_ID: "victim", REASON: "forged"} if letter else {}
    store.store(Message(victim.name, record, content_type=FAILURE_TYPE, headers=headers, priority=-1))

    with make_chain() as chain:
        listen(chain, max_retries=0, dead_letter_store=dead)
        until(lambda: store.count()[ACKNOWLEDGED] == 2)

    assert sorted(str(_original(one)) for one in dead.browse(10)) == ["forged", "precious"]


def _original(letter: Message) -> Any:
    return FailureRecord.of(letter).message.content


def test_failure_store_that_is_down_loses_nothing(
    store: Any,
    dead: Any,
    make_chain: Any,
    listen: Any,
    *,
    until: Any,
    count: Counter[str],
    refusing: set[str],
    store_that_is_down: Any,
) -> None:
    refusing |= {"crm", "lake"}
    store.store(1, id="m1", headers={"tenant": "eu"})
    with make_chain(failure_store=store_that_is_down) as chain:
        listener = listen(chain, max_retries=1, dead_letter_store=dead)
        until(lambda: listener.metrics().dead_lettered == 1)
    letter = dead.retrieve()
    assert letter.content == 1
    assert "crm: OSError: crm refused" in letter.headers["homing-dead-letter-description"]
    assert "did not take it" in letter.headers["homing-dead-letter-description"]
    assert count == {"crm": 2, "lake": 2}


def test_delay_that_a_destination_asks_for_reaches_the_listener(store: Any, listen: Any, until: Any) -> None:
    moments: list[float] = []

    @destination
    def crm(ctx: MessageContext) -> None:
        moments.append(time.monotonic())
        if len(moments) == 1:
            raise Retry("busy", after=0.3)

    store.store(1)
    with HandlerChain("orders", destinations_flow=crm) as chain:
        listener = listen(chain, retry_interval=600)
        until(lambda: listener.metrics().processed == 1)
    assert moments[1] - moments[0] >= 0.3


def test_error_that_must_never_be_retried_reaches_the_listener_and_is_the_reason_of_the_dead_letter(
    store: Any, dead: Any, listen: Any, until: Any
) -> None:
    calls: Counter[str] = Counter()

    @destination
    def crm(ctx: MessageContext) -> None:
        calls["crm"] += 1
        raise PermissionError("locked out")

    store.store(1)
    with HandlerChain("orders", destinations_flow=crm) as chain:
        listen(chain, retry=RetryPolicy(5, 0.02, never=(PermissionError,)), dead_letter_store=dead)
        until(lambda: dead.count()[AVAILABLE] == 1)
    headers = dead.retrieve().headers
    assert headers["homing-dead-letter-reason"] == "PermissionError"
    assert headers["homing-dead-letter-handler"] == "crm"
    assert "locked out" in headers["homing-dead-letter-description"]
    assert "locked out" in headers["homing-dead-letter-stack"]
    assert calls["crm"] == 1


def test_destination_that_may_be_tried_again_is_not_kept_from_it_by_one_that_may_not(
    store: Any, dead: Any, listen: Any, until: Any
) -> None:
    calls: Counter[str] = Counter()

    @destination
    def crm(ctx: MessageContext) -> None:
        raise PermissionError("locked out")

    @destination
    def lake(ctx: MessageContext) -> None:
        calls["lake"] += 1
        if calls["lake"] < 3:
            raise OSError("away")

    store.store(1)
    with HandlerChain("orders", destinations_flow=[crm, lake]) as chain:
        listen(chain, retry=RetryPolicy(5, 0.02, never=(PermissionError,)), dead_letter_store=dead)
        until(lambda: dead.count()[AVAILABLE] == 1)
    assert read_record(dead.retrieve().content).done == {"lake": None}
    assert calls["lake"] == 3
