"""What a signal handler raises ends whoever runs a handler; what the handler raises itself fails its message."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowTaskTimeout
from airflow.sdk.execution_time.timeout import timeout as airflow_timeout

from homing import ExecutionError, HandlerChain, Message, destination, processor
from homing.invocation import interrupts
from homing.invocation.interrupts import is_user_interrupt
from homing.pipeline import MessageContext
from tests.flows import deliver_many


class TimeIsUpError(Exception):
    """As other schedulers raise it: an exception like any other."""


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGALRM, signal.SIGTERM)}
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    for number, handler in before.items():
        signal.signal(number, handler)


def _raise(error: Callable[[], BaseException], *_: Any) -> None:
    raise error()


def exits(number: int, frame: object) -> None:
    raise SystemExit(143)


def time_is_up(number: int, frame: object) -> None:
    raise TimeIsUpError


class Handler:
    def __call__(self, number: int, frame: object) -> None:
        raise TimeIsUpError

    def method(self, number: int, frame: object) -> None:
        raise TimeIsUpError


def hit() -> None:
    signal.raise_signal(signal.SIGTERM)


def chain_of(kind: str, work: Callable[[], object]) -> HandlerChain:
    @destination
    def crm(ctx: MessageContext) -> None:
        work()

    @destination(batch=5)
    def lake(ctxs: list[MessageContext]) -> None:
        work()

    @processor
    def touch(ctx: MessageContext) -> None:
        work()

    flows: dict[str, Any] = {"crm": crm, "lake": lake, "source": crm, "flow": ([touch], crm)}
    return HandlerChain("orders", source_flow=[touch] if kind == "source" else [], destinations_flow=flows[kind])


@pytest.mark.parametrize("kind", ["crm", "lake", "source", "flow"])
@pytest.mark.parametrize("handler", [exits, time_is_up, Handler(), Handler().method, partial(_raise, TimeIsUpError)])
def test_what_a_signal_handler_raises_passes_through_every_kind_of_handler(kind: str, handler: Any) -> None:
    signal.signal(signal.SIGTERM, handler)
    with chain_of(kind, hit) as chain, pytest.raises((SystemExit, TimeIsUpError)):
        chain.execute(1)


@pytest.mark.parametrize("kind", ["crm", "lake", "source"])
def test_airflows_timeout_ends_the_task_and_fails_no_message(kind: str) -> None:
    with chain_of(kind, threading.Event().wait) as chain, pytest.raises(AirflowTaskTimeout), airflow_timeout(0.2):
        chain.execute(1)


def test_a_timeout_in_the_midst_of_a_batch_fails_none_of_it() -> None:
    chain = chain_of("lake", threading.Event().wait)
    contexts = [MessageContext(Message(f"m{n}", n)) for n in range(3)]
    with chain, pytest.raises(AirflowTaskTimeout), airflow_timeout(0.2):
        deliver_many(chain.flows[0], contexts)


def test_an_interrupt_that_a_handler_wrapped_is_one_still() -> None:
    def wrap() -> None:
        try:
            hit()
        except SystemExit as error:
            raise RuntimeError("cleaned up") from error

    signal.signal(signal.SIGTERM, exits)
    with chain_of("crm", wrap) as chain, pytest.raises(RuntimeError, match="cleaned up"):
        chain.execute(1)


@pytest.mark.parametrize("error", [SystemExit(1), TimeIsUpError(), TimeoutError(), GeneratorExit(), BaseException()])
def test_what_a_handler_raises_itself_is_a_failure_of_its_message(error: BaseException) -> None:
    signal.signal(signal.SIGTERM, exits)

    def work() -> None:
        raise error

    with chain_of("crm", work) as chain, pytest.raises(ExecutionError):
        chain.execute(1)


def test_a_handlers_own_timeout_by_signal_is_its_own_affair() -> None:
    def work() -> None:
        before = signal.signal(signal.SIGTERM, time_is_up)
        try:
            hit()
        finally:
            signal.signal(signal.SIGTERM, before)

    with chain_of("crm", work) as chain, pytest.raises(ExecutionError):
        chain.execute(1)


def test_in_another_thread_nothing_is_an_interrupt() -> None:
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(is_user_interrupt(KeyboardInterrupt())))
    thread.start()
    thread.join()
    assert found == [False]
    assert is_user_interrupt(KeyboardInterrupt())


def test_an_error_that_is_its_own_cause_fails_its_message_and_does_not_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[BaseException] = []

    def look(error: BaseException, _codes: object) -> bool:
        looked_at.append(error)
        assert len(looked_at) < 100, "it goes round for ever"
        return False

    def work() -> None:
        error = ValueError("no good")
        raise error from error

    monkeypatch.setattr(interrupts, "_ran_through", look)
    with chain_of("crm", work) as chain, pytest.raises(ExecutionError, match="no good"):
        chain.execute(1)
