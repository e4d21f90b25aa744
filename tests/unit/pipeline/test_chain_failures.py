"""What is kept of a message that fails, and what its error says."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

from homing.errors import HandlerError, UnstorableContentError
from homing.failure import read_record
from homing.message import Message
from homing.pipeline import (
    ExecutionError,
    HandlerChain,
    MessageContext,
    destination,
    processor,
    transformer,
)


@processor
def mark(ctx: MessageContext) -> None:
    ctx.set_property("marked", True)


@transformer
def enriched(ctx: MessageContext) -> Any:
    return {**ctx.get_content(), "rate": 2}


@transformer
def failing(ctx: MessageContext) -> Any:
    ctx.set_property("half", "way")
    raise ValueError("no such customer")


@destination
def crm(ctx: MessageContext) -> Any:
    return "crm-1"


@destination
def down(ctx: MessageContext) -> Any:
    raise ConnectionError("refused")


def test_failing_processor_keeps_the_message_from_every_destination() -> None:
    reached: list[str] = []

    @destination
    def sink(ctx: MessageContext) -> None:
        reached.append(ctx.get_id())

    with pytest.raises(ExecutionError):
        HandlerChain("orders", source_flow=failing, destinations_flow=sink).execute({})
    assert reached == []


def test_record_of_a_failed_processor_has_the_original_and_the_state_at_the_failure(
    failure_store: Any,
) -> None:
    chain = HandlerChain(
        "orders", source_flow=[mark, enriched, failing], destinations_flow=crm, failure_store=failure_store
    )
    with pytest.raises(ExecutionError):
        chain.execute({"order": 7}, id="m1", headers={"tenant": "eu"})

    [entry] = failure_store.messages
    read = read_record(entry.content)
    assert read.message == Message("m1", {"order": 7}, headers={"tenant": "eu"})
    assert read.properties == {}
    assert read.chain == "orders"
    assert entry.content["snapshot"][""] == {
        "id": "m1",
        "content": {"order": 7, "rate": 2},
        "headers": {"tenant": "eu"},
        "properties": {"marked": True, "half": "way"},
    }


def test_record_explains_the_error(failure_store: Any) -> None:
    chain = HandlerChain("orders", source_flow=failing, destinations_flow=crm, failure_store=failure_store)
    with pytest.raises(ExecutionError):
        chain.execute({})

    error = failure_store.messages[0].content["errors"][""]
    assert error["type"] == "ValueError"
    assert error["message"] == "no such customer"
    assert error["handler"] == "failing"
    assert error["attempt"] == 1
    assert 'raise ValueError("no such customer")' in error["stack"]
    assert "steps.py" not in error["stack"]


def test_record_of_a_failed_destination_names_the_destinations_done(failure_store: Any) -> None:
    chain = HandlerChain("orders", destinations_flow=[crm, down], failure_store=failure_store)
    with chain, pytest.raises(ExecutionError):
        chain.execute({"order": 7}, id="m1")

    read = read_record(failure_store.messages[0].content)
    assert read.done == {"crm": "crm-1"}
    assert list(read.errors) == ["down"]
    assert read.errors["down"]["type"] == "ConnectionError"


def test_error_names_message_chain_handlers_and_reasons() -> None:
    @destination
    def lake(ctx: MessageContext) -> None:
        raise PermissionError("read only")

    with (
        HandlerChain("orders", destinations_flow=[down, lake]) as chain,
        pytest.raises(ExecutionError) as failure,
    ):
        chain.execute({}, id="m1")
    assert str(failure.value) == (
        "message m1 failed in chain 'orders': down: ConnectionError: refused; lake: PermissionError: read only"
    )


def test_error_carries_the_entry_of_the_failure_store(failure_store: Any) -> None:
    chain = HandlerChain("orders", destinations_flow=down, failure_store=failure_store)
    with pytest.raises(ExecutionError) as failure:
        chain.execute({}, id="m1")
    assert failure.value.message == failure_store.messages[0]


def test_error_carries_the_record_when_there_is_no_failure_store() -> None:
    with pytest.raises(ExecutionError) as failure:
        HandlerChain("orders", destinations_flow=down).execute(b"\x00\xff", id="m1")
    assert read_record(failure.value.message.content).message == Message("m1", b"\x00\xff")


def test_same_message_failing_twice_is_kept_twice(failure_store: Any) -> None:
    chain = HandlerChain("orders", destinations_flow=down, failure_store=failure_store)
    for _ in range(2):
        with pytest.raises(ExecutionError):
            chain.execute({}, id="m1")
    assert len({entry.id for entry in failure_store.messages}) == 2


def test_failure_store_that_is_down_is_named_and_the_error_still_carries_the_record(
    store_that_is_down: Any, caplog: pytest.LogCaptureFixture
) -> None:
    chain = HandlerChain("orders", destinations_flow=down, failure_store=store_that_is_down)
    with caplog.at_level(logging.ERROR), pytest.raises(ExecutionError) as failure:
        chain.execute({"order": 7}, id="m1")

    assert "down: ConnectionError: refused" in str(failure.value)
    assert "failure store 'failures' did not take it: StoreUnavailableError: no connection" in str(failure.value)
    assert read_record(failure.value.message.content).message.content == {"order": 7}
    assert "m1" in caplog.text
    assert "order" not in caplog.messages[0]


def test_success_writes_nothing_to_the_failure_store(failure_store: Any) -> None:
    HandlerChain("orders", destinations_flow=crm, failure_store=failure_store).execute({})
    assert failure_store.messages == []


@pytest.mark.parametrize("fatal", [SystemExit(3), GeneratorExit(), BaseException("odd")])
@pytest.mark.parametrize("place", ["source", "alone", "beside"])
def test_base_exception_in_a_handler_fails_the_message_and_not_the_process(fatal: BaseException, place: str) -> None:
    @processor
    def exiting(ctx: MessageContext) -> None:
        raise fatal

    @destination
    def exiting_destination(ctx: MessageContext) -> None:
        raise fatal

    flows = {
        "source": {"source_flow": exiting, "destinations_flow": crm},
        "alone": {"destinations_flow": exiting_destination},
        "beside": {"destinations_flow": [crm, exiting_destination]},
    }
    with HandlerChain("orders", **flows[place]) as chain, pytest.raises(ExecutionError, match="exiting"):
        chain.execute({})


def test_keyboard_interrupt_in_the_main_thread_propagates() -> None:
    @destination
    def interrupted(ctx: MessageContext) -> None:
        raise KeyboardInterrupt

    assert threading.current_thread() is threading.main_thread()
    with pytest.raises(KeyboardInterrupt):
        HandlerChain("orders", destinations_flow=interrupted).execute({})


def test_keyboard_interrupt_in_a_worker_thread_is_a_failure_of_the_message() -> None:
    started = threading.Event()

    @destination
    def busy(ctx: MessageContext) -> None:
        assert started.wait(10)

    @destination
    def interrupted(ctx: MessageContext) -> None:
        started.set()
        raise KeyboardInterrupt

    chain = HandlerChain("orders", destinations_flow=[busy, interrupted])
    with chain, pytest.raises(ExecutionError, match="interrupted: KeyboardInterrupt"):
        chain.execute({})


def test_error_whose_text_cannot_be_made_is_kept_all_the_same(failure_store: Any) -> None:
    class UnspeakableError(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    @destination
    def odd(ctx: MessageContext) -> None:
        raise UnspeakableError

    chain = HandlerChain("orders", destinations_flow=odd, failure_store=failure_store)
    with pytest.raises(ExecutionError, match=r"odd: .*UnspeakableError"):
        chain.execute({})
    assert len(failure_store.messages) == 1


def test_error_text_that_is_no_unicode_is_kept_all_the_same(failure_store: Any) -> None:
    @destination
    def odd(ctx: MessageContext) -> None:
        raise ValueError("broken \ud800 text")

    chain = HandlerChain("orders", destinations_flow=odd, failure_store=failure_store)
    with pytest.raises(ExecutionError):
        chain.execute({})
    assert failure_store.messages[0].content["errors"]["odd"]["message"] == "broken ? text"


@pytest.mark.parametrize(
    ("content", "headers"),
    [({"a": {1, 2}}, None), ({"a": "\ud800"}, None), ({"\ud800": 1}, None), ("x", {"a": b"b"})],
)
def test_content_that_no_store_could_keep_is_refused_before_any_handler_runs(content: Any, headers: Any) -> None:
    ran: list[int] = []

    @destination
    def sink(ctx: MessageContext) -> None:
        ran.append(1)

    with pytest.raises(UnstorableContentError):
        HandlerChain("orders", destinations_flow=sink).execute(content, headers=headers)
    assert ran == []


def test_content_that_holds_itself_is_refused() -> None:
    circle: list[Any] = []
    circle.append(circle)
    with pytest.raises(UnstorableContentError, match="holds itself"):
        HandlerChain("orders", destinations_flow=crm).execute(circle)


def test_failures_are_counted() -> None:
    chain = HandlerChain("orders", destinations_flow=[crm, down])
    with chain, pytest.raises(ExecutionError):
        chain.execute({})
    assert chain.counts() == {"executed": 1, "delivered": 1, "filtered": 0, "dropped": 0, "failed": 1}


def test_errors_survive_pickling() -> None:
    import pickle

    with pytest.raises(ExecutionError) as failure:
        HandlerChain("orders", destinations_flow=down).execute({}, id="m1")
    copy = pickle.loads(pickle.dumps(failure.value))  # noqa: S301
    assert (str(copy), copy.message) == (str(failure.value), failure.value.message)

    error = pickle.loads(pickle.dumps(HandlerError("text", "crm", 3, {"id": "m1"})))  # noqa: S301
    assert (str(error), error.handler, error.attempts, error.snapshot) == ("text", "crm", 3, {"id": "m1"})
