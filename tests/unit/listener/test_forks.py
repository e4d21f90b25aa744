"""A process that is forked while a thread holds a lock of ours can use everything."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

from homing import CircuitBreaker, HandlerChain, ListenerConfig, MessageContext, StoreListener, destination, open_store
from homing.errors import CircuitOpenError
from homing.invocation.circuit_breaker import Circuit

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


def test_a_guarded_destination_whose_locks_were_held_is_called_in_a_forked_process() -> None:
    @destination(rate=1_000, breaker=CircuitBreaker())
    def crm(ctx: MessageContext) -> Any:
        return ctx.get_content()

    chain = HandlerChain("orders", destinations_flow=[crm])
    assert crm.guard is not None
    assert crm.guard.rate is not None
    for lock in (crm.guard.rate._lock, crm.guard._circuit._lock):
        assert forked_while_held(lock, lambda: chain.execute(2).destination_results == {"crm": 2})


def test_a_try_that_stayed_in_the_parent_does_not_keep_a_breaker_open_in_a_forked_process() -> None:
    """Otherwise nothing would be called there any more, and every message would be a dead letter."""
    circuit = Circuit(CircuitBreaker(failures=1, pause=0.001))
    circuit.failed()
    threading.Event().wait(0.01)
    circuit.enter()
    with pytest.raises(CircuitOpenError):
        circuit.enter()

    def use() -> bool:
        circuit.enter()
        circuit.succeeded()
        return True

    assert works_in_a_child(use)


def test_a_memory_store_whose_lock_was_held_works_in_a_forked_process() -> None:
    with open_store("memory://forked_while_held") as store:
        store.store("order")
        assert forked_while_held(store._index.changed, lambda: store.count()["available"] == 1)
