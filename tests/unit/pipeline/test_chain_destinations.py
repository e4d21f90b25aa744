"""How a processed message reaches its destinations."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from homing.errors import HandlerError
from homing.message import Message
from homing.pipeline import (
    Drop,
    ExecutionError,
    HandlerChain,
    MessageContext,
    destination,
    destination_router,
    message_filter,
    processor,
    transformer,
)
from tests.flows import deliver_many

WAIT = 10.0


@destination
def crm(ctx: MessageContext) -> Any:
    return ["crm", ctx.get_content()]


@destination
def lake(ctx: MessageContext) -> Any:
    return ["lake", ctx.get_content()]


@message_filter
def never(ctx: MessageContext) -> bool:
    return False


@transformer
def doubled(ctx: MessageContext) -> Any:
    return ctx.get_content() * 2


def test_results_are_keyed_by_destination_name() -> None:
    with HandlerChain("chain", destinations_flow=[crm, lake]) as chain:
        assert chain.execute(1).destination_results == {"crm": ["crm", 1], "lake": ["lake", 1]}


def test_destinations_run_in_parallel() -> None:
    both_there = threading.Barrier(2, timeout=WAIT)

    @destination
    def left(ctx: MessageContext) -> None:
        both_there.wait()

    @destination
    def right(ctx: MessageContext) -> None:
        both_there.wait()

    with HandlerChain("chain", destinations_flow=[left, right]) as chain:
        assert len(chain.execute(1).deliveries) == 2


@pytest.mark.parametrize("bad_first", [True, False])
def test_failing_destination_stops_no_other_and_all_are_awaited(bad_first: bool) -> None:
    bad_has_failed = threading.Event()
    done: list[str] = []

    @destination
    def bad(ctx: MessageContext) -> None:
        bad_has_failed.set()
        raise OSError("refused")

    @destination
    def slow(ctx: MessageContext) -> None:
        assert bad_has_failed.wait(WAIT)
        done.append("slow")

    flows = [bad, slow] if bad_first else [slow, bad]
    with (
        HandlerChain("chain", destinations_flow=flows) as chain,
        pytest.raises(ExecutionError, match="bad: OSError"),
    ):
        chain.execute(1)
    assert done == ["slow"]


def test_single_destination_runs_in_the_calling_thread() -> None:
    @destination
    def where(ctx: MessageContext) -> Any:
        return threading.get_ident()

    chain = HandlerChain("chain", destinations_flow=where)
    assert chain.execute(1).destination_results["where"] == threading.get_ident()


def test_own_processors_work_on_the_copy_of_their_destination_only() -> None:
    @processor
    def mark(ctx: MessageContext) -> None:
        ctx.set_property("mark", True)

    @destination
    def marked(ctx: MessageContext) -> Any:
        return [ctx.get_content(), ctx.has_property("mark")]

    @destination
    def plain(ctx: MessageContext) -> Any:
        return [ctx.get_content(), ctx.has_property("mark")]

    with HandlerChain("chain", destinations_flow=[([doubled, mark], marked), plain]) as chain:
        assert chain.execute(2).destination_results == {"marked": [4, True], "plain": [2, False]}


def test_false_filter_of_a_destination_flow_ends_only_that_destination() -> None:
    with HandlerChain("chain", destinations_flow=[([never], crm), lake]) as chain:
        result = chain.execute(1)
    assert result.destination_results == {"lake": ["lake", 1]}
    assert [(delivery.destination, delivery.state) for delivery in result.deliveries] == [
        ("crm", "filtered"),
        ("lake", "delivered"),
    ]
    assert chain.counts()["filtered"] == 1


def test_failing_own_processor_is_a_failure_of_that_destination_only() -> None:
    @transformer
    def broken(ctx: MessageContext) -> Any:
        raise ValueError("no rate")

    chain = HandlerChain("chain", destinations_flow=[([broken], crm), lake])
    with chain, pytest.raises(ExecutionError, match="broken of crm: ValueError: no rate") as failure:
        chain.execute(1)
    record = failure.value.message.content
    assert list(record["errors"]) == ["crm"]
    assert record["errors"]["crm"]["handler"] == "broken of crm"
    assert record["done"] == {"lake": ["lake", 1]}


def test_drop_raised_by_a_destination_ends_only_that_destination_and_is_counted() -> None:
    @destination
    def picky(ctx: MessageContext) -> None:
        raise Drop("seen before")

    with HandlerChain("chain", destinations_flow=[picky, lake]) as chain:
        result = chain.execute(1)
    assert result.destination_results == {"lake": ["lake", 1]}
    assert result.deliveries[0].state == "dropped"
    assert chain.counts()["dropped"] == 1


def test_destination_is_tried_once_when_nothing_else_is_said() -> None:
    calls: list[int] = []

    @destination
    def flaky(ctx: MessageContext) -> None:
        calls.append(1)
        raise OSError

    with pytest.raises(ExecutionError):
        HandlerChain("chain", destinations_flow=flaky).execute(1)
    assert len(calls) == 1


def test_destination_is_tried_once_plus_max_retries_times() -> None:
    calls: list[int] = []

    @destination(max_retries=2, retry_interval=0.001)
    def flaky(ctx: MessageContext) -> None:
        calls.append(1)
        raise OSError("refused")

    with pytest.raises(ExecutionError, match="after 3 attempts") as failure:
        HandlerChain("chain", destinations_flow=flaky).execute(1)
    assert len(calls) == 3
    assert failure.value.message.content["errors"]["flaky"]["attempt"] == 3


def test_retry_that_succeeds_is_a_success() -> None:
    calls: list[int] = []

    @destination(max_retries=2, retry_interval=0.001)
    def flaky(ctx: MessageContext) -> str:
        calls.append(1)
        if len(calls) < 2:
            raise OSError
        return "ok"

    delivery = HandlerChain("chain", destinations_flow=flaky).execute(1).deliveries[0]
    assert (delivery.state, delivery.result, delivery.attempts) == ("delivered", "ok", 2)


def test_retry_interval_passes_between_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr("homing.pipeline.attempt.time.sleep", waits.append)

    @destination(max_retries=2, retry_interval=7)
    def flaky(ctx: MessageContext) -> None:
        raise OSError

    with pytest.raises(ExecutionError):
        HandlerChain("chain", destinations_flow=flaky).execute(1)
    assert waits == [7.0, 7.0]


def test_own_processors_are_not_repeated_by_a_retry_of_their_destination() -> None:
    runs: list[str] = []

    @processor
    def prepare(ctx: MessageContext) -> None:
        runs.append("prepare")

    @destination(max_retries=1, retry_interval=0.001)
    def flaky(ctx: MessageContext) -> None:
        runs.append("flaky")
        raise OSError

    with pytest.raises(ExecutionError):
        HandlerChain("chain", destinations_flow=[([prepare], flaky)]).execute(1)
    assert runs == ["prepare", "flaky", "flaky"]


def test_router_delivers_only_to_the_destination_it_returns() -> None:
    @destination_router
    def by_size(ctx: MessageContext) -> Any:
        return crm if ctx.get_content() > 1 else lake

    chain = HandlerChain("chain", destinations_flow=by_size)
    assert [flow.name for flow in chain.flows] == ["by_size"]
    assert chain.execute(1).destination_results == {"lake": ["lake", 1]}
    assert chain.execute(2).destination_results == {"crm": ["crm", 2]}


def test_router_may_return_a_destination_with_processors() -> None:
    @destination_router
    def route(ctx: MessageContext) -> Any:
        return ([doubled], crm)

    assert HandlerChain("chain", destinations_flow=route).execute(2).destination_results == {"crm": ["crm", 4]}


def test_routers_that_reach_the_same_destination_both_keep_their_result() -> None:
    @destination_router
    def one(ctx: MessageContext) -> Any:
        return crm

    @destination_router
    def other(ctx: MessageContext) -> Any:
        return ([doubled], crm)

    with HandlerChain("chain", destinations_flow=[one, other]) as chain:
        assert chain.execute(1).destination_results == {"crm": ["crm", 1], "other": ["crm", 2]}


def test_router_that_returns_none_delivers_nowhere_and_counts_as_dropped(failure_store: Any) -> None:
    @destination_router
    def nowhere(ctx: MessageContext) -> Any:
        return None

    chain = HandlerChain("chain", destinations_flow=nowhere, failure_store=failure_store)
    result = chain.execute(1)
    assert result.destination_results == {}
    assert [(delivery.destination, delivery.state) for delivery in result.deliveries] == [("nowhere", "dropped")]
    assert chain.counts()["dropped"] == 1
    assert failure_store.messages == []


@pytest.mark.parametrize("rubbish", ["crm", doubled, ([crm], doubled), (1, 2, 3), lambda ctx: None])
def test_router_that_returns_no_destination_flow_is_a_failure(rubbish: Any) -> None:
    @destination_router
    def lost(ctx: MessageContext) -> Any:
        return rubbish

    with pytest.raises(ExecutionError, match="lost: ChainError: a destination flow"):
        HandlerChain("chain", destinations_flow=lost).execute(1)


def test_flow_says_what_it_delivered() -> None:
    flow = HandlerChain("chain", destinations_flow=[([doubled], crm)]).flows[0]
    ctx = MessageContext(Message("m1", 2))

    delivery = flow.deliver(ctx)

    assert (delivery.destination, delivery.state, delivery.result, delivery.attempts) == (
        "crm",
        "delivered",
        ["crm", 4],
        1,
    )
    assert ctx.get_content() == 2


def test_flow_that_fails_ends_with_a_handler_error_that_has_cause_attempts_and_snapshot() -> None:
    @destination(max_retries=1, retry_interval=0.001)
    def flaky(ctx: MessageContext) -> None:
        ctx.set_property("reached", True)
        raise OSError("refused")

    flow = HandlerChain("chain", destinations_flow=[([doubled], flaky)]).flows[0]
    outcome = flow.deliver(MessageContext(Message("m1", 2)))

    assert (outcome.state, outcome.destination, outcome.attempts) == ("failed", "flaky", 2)
    error = outcome.error
    assert isinstance(error, HandlerError)
    assert "destination 'flaky' failed on message m1: OSError: refused" in str(error)
    assert (error.handler, error.attempts) == ("flaky", 2)
    assert isinstance(error.__cause__, OSError)
    assert error.snapshot == {
        "id": "m1",
        "content": 4,
        "headers": {},
        "properties": {"reached": True},
    }


def test_chain_delivers_again_after_close() -> None:
    chain = HandlerChain("chain", destinations_flow=[crm, lake])
    chain.execute(1)
    chain.close()
    chain.close()
    assert len(chain.execute(1).destination_results) == 2
    chain.close()


def test_close_ends_the_threads() -> None:
    def chain_threads() -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread.name.startswith("homing-closing")]

    with HandlerChain("closing", destinations_flow=[crm, lake]) as chain:
        assert chain_threads() == []
        chain.execute(1)
        assert chain_threads() != []
    assert chain_threads() == []


def test_destination_router_that_raises_is_a_failure(failure_store: Any) -> None:
    @destination_router
    def lost(ctx: MessageContext) -> Any:
        raise LookupError("no such region")

    chain = HandlerChain("chain", destinations_flow=lost, failure_store=failure_store)
    with pytest.raises(ExecutionError, match="lost: LookupError: no such region"):
        chain.execute(1)
    assert len(failure_store.messages) == 1


@transformer
def priceless(ctx: MessageContext) -> Any:
    raise ValueError("no rate")


@destination_router
def to_crm(ctx: MessageContext) -> Any:
    return [priceless], crm


@destination(batch=5)
def many(contents: list[MessageContext]) -> None:
    pass


@pytest.mark.parametrize(
    ("flow", "name", "reached"),
    [(([priceless], crm), "crm", "crm"), (to_crm, "to_crm", "crm"), (([priceless], many), "many", "many")],
)
def test_error_of_an_own_processor_names_its_destination_which_others_may_share_it_with(
    flow: Any, name: str, reached: str
) -> None:
    with HandlerChain("chain", destinations_flow=[flow, lake]) as chain:
        with pytest.raises(ExecutionError, match=f"priceless of {reached}: ValueError: no rate") as failure:
            chain.execute(1)
        (error,) = failure.value.errors
        many_at_once = deliver_many(chain.flows[0], [MessageContext(Message("m1", 1))])
    assert failure.value.message.content["errors"][name]["handler"] == f"priceless of {reached}"
    assert str(error).startswith(f"destination {reached!r}: transformer 'priceless' failed on message ")
    assert [ended.error and ended.error.handler for ended in many_at_once.values()] == [f"priceless of {reached}"]
