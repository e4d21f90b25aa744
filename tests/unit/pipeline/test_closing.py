"""Closing a chain: what hangs is left behind, what was opened is closed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from homing.pipeline import HandlerChain, MessageContext, destination, destination_router


@pytest.fixture
def leave() -> Iterator[threading.Event]:
    """Ends what hangs."""
    event = threading.Event()
    yield event
    event.set()


def ends(call: Any) -> bool:
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(20)
    return not thread.is_alive()


def test_close_leaves_a_destination_that_hangs_behind_and_says_so(
    leave: threading.Event, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("homing.pipeline.workers.PATIENCE", 0.2)
    hung = threading.Event()

    @destination
    def crm(ctx: MessageContext) -> None:
        assert hung.wait(20)

    @destination
    def lake(ctx: MessageContext) -> None:
        hung.set()
        leave.wait(60)

    chain = HandlerChain("orders", destinations_flow=[crm, lake])
    executing = threading.Thread(target=chain.execute, args=(1,), daemon=True)
    executing.start()
    assert hung.wait(20)
    assert ends(chain.close)
    assert "left behind" in caplog.text
    leave.set()
    executing.join(20)
    assert not executing.is_alive()


def test_close_does_not_wait_for_a_setup_that_hangs(
    leave: threading.Event, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("homing.pipeline.clients._PATIENCE", 0.2)
    hung = threading.Event()

    def connect() -> str:
        hung.set()
        leave.wait(60)
        return "client"

    @destination(setup=connect)
    def crm(ctx: MessageContext, client: str) -> None: ...

    chain = HandlerChain("orders", destinations_flow=crm)
    threading.Thread(target=chain.execute, args=(1,), daemon=True).start()
    assert hung.wait(20)
    assert ends(chain.close)
    assert "connect hangs" in caplog.text


def test_clients_of_routed_destinations_are_closed_with_the_chain() -> None:
    steps: list[str] = []

    @contextmanager
    def connect() -> Iterator[str]:
        steps.append("open")
        yield "client"
        steps.append("close")

    @destination(setup=connect)
    def crm(ctx: MessageContext, client: str) -> str:
        return client

    @destination_router
    def route(ctx: MessageContext) -> Any:
        return crm

    with HandlerChain("orders", destinations_flow=route) as chain:
        assert chain.execute(1).destination_results == {"crm": "client"}
    assert steps == ["open", "close"]
