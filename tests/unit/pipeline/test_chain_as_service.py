"""A chain attached to a listener."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from homing import HandlerChain, ListenerConfig, MessageContext, StoreListener, destination, open_store
from homing.message import ACKNOWLEDGED, AVAILABLE
from homing.pipeline import read_record
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
        config = ListenerConfig(polling_interval=0.02, retry_interval=0.02, **options)
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
