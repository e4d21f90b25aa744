"""A process that is forked while a thread holds a lock of ours can use everything."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

from homing import HandlerChain, ListenerConfig, MessageContext, StoreListener, destination

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def works_in_a_child(use: Callable[[], bool]) -> bool:
    """Whether `use` answers True in a forked process, in good time."""
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        try:
            os._exit(0 if use() else 1)
        finally:
            os._exit(2)
    return os.waitpid(child, 0)[1] == 0


def forked_while_held(lock: Any, use: Callable[[], bool]) -> bool:
    held, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            leave.wait(60)

    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    assert held.wait(20)
    try:
        return works_in_a_child(use)
    finally:
        leave.set()
        thread.join(20)


def test_listener_whose_lock_was_held_works_in_a_forked_process(plain: Any) -> None:
    listener = StoreListener(plain, ListenerConfig(polling_interval=0.02))
    listener.attach(lambda content: None)
    plain.store(1)

    def use() -> bool:
        listener.start()
        while not listener.metrics().processed:
            threading.Event().wait(0.01)
        return listener.graceful_stop()

    assert forked_while_held(listener._lock, use)


def test_numbers_of_a_listener_whose_lock_was_held_can_be_read_in_a_forked_process(plain: Any) -> None:
    listener = StoreListener(plain)
    assert forked_while_held(listener._counts._lock, lambda: listener.metrics().processed == 0)


@pytest.mark.parametrize("lock_of", [lambda chain: chain._workers._lock, lambda chain: chain._counters._lock])
def test_chain_whose_lock_was_held_works_in_a_forked_process(lock_of: Any) -> None:
    @destination
    def crm(ctx: MessageContext) -> Any:
        return ctx.get_content()

    @destination
    async def lake(ctx: MessageContext) -> Any:
        return ctx.get_content()

    chain = HandlerChain("orders", destinations_flow=[crm, lake])
    chain.execute(1)

    def use() -> bool:
        return chain.execute(2).destination_results == {"crm": 2, "lake": 2} and chain.counts()["executed"] == 2

    assert forked_while_held(lock_of(chain), use)
