"""What the processors of a source flow do to a message."""

from __future__ import annotations

from typing import Any

import pytest

from homing.pipeline import (
    Drop,
    ExecutionError,
    HandlerChain,
    MessageContext,
    destination,
    message_filter,
    processor,
    processor_router,
    transformer,
)
from homing.pipeline.runner import run_source


@destination
def sink(ctx: MessageContext) -> Any:
    return ctx.get_content()


@transformer
def add_one(ctx: MessageContext) -> Any:
    return [*ctx.get_content(), 1]


@transformer
def add_two(ctx: MessageContext) -> Any:
    return [*ctx.get_content(), 2]


@transformer
def add_three(ctx: MessageContext) -> Any:
    return [*ctx.get_content(), 3]


def reach_sink(source_flow: Any, content: Any = None) -> Any:
    with HandlerChain("chain", source_flow=source_flow, destinations_flow=sink) as chain:
        return chain.execute([] if content is None else content).destination_results["sink"]


def test_content_without_processors_reaches_the_destination_as_it_is() -> None:
    assert reach_sink([], {"a": 1}) == {"a": 1}


def test_processors_run_in_the_order_they_are_written() -> None:
    assert reach_sink([add_two, add_one, add_three]) == [2, 1, 3]


def test_result_of_the_last_transformer_is_the_message_of_the_result() -> None:
    with HandlerChain("chain", source_flow=[add_one, add_two], destinations_flow=sink) as chain:
        assert chain.execute([], id="m1").message.content == [1, 2]


def test_every_execution_gets_an_id_of_its_own() -> None:
    with HandlerChain("chain", destinations_flow=sink) as chain:
        first, second = chain.execute(1).message.id, chain.execute(1).message.id
    assert first
    assert first != second


def test_given_id_and_headers_are_what_handlers_see() -> None:
    @destination
    def tell(ctx: MessageContext) -> Any:
        return [ctx.get_id(), dict(ctx.message.headers)]

    with HandlerChain("chain", destinations_flow=tell) as chain:
        result = chain.execute("x", id="m1", headers={"tenant": "eu"})
    assert result.destination_results["tell"] == ["m1", {"tenant": "eu"}]


def test_filter_that_returns_false_drops_the_message_with_success(failure_store: Any) -> None:
    after: list[str] = []

    @message_filter
    def never(ctx: MessageContext) -> bool:
        return False

    @processor
    def next_one(ctx: MessageContext) -> None:
        after.append("processor")

    @destination
    def last(ctx: MessageContext) -> None:
        after.append("destination")

    chain = HandlerChain("chain", source_flow=[never, next_one], destinations_flow=last, failure_store=failure_store)
    result = chain.execute("x")

    assert after == []
    assert result.destination_results == {}
    assert result.dropped == "filter never returned False"
    assert failure_store.messages == []


def test_filter_that_returns_true_lets_the_message_go_on() -> None:
    @message_filter
    def always(ctx: MessageContext) -> bool:
        return True

    assert reach_sink([always, add_one]) == [1]


def test_filter_that_raises_is_a_failure(failure_store: Any) -> None:
    @message_filter
    def broken(ctx: MessageContext) -> bool:
        raise KeyError("paid")

    chain = HandlerChain("chain", source_flow=broken, destinations_flow=sink, failure_store=failure_store)
    with pytest.raises(ExecutionError, match="broken: KeyError"):
        chain.execute("x")
    assert len(failure_store.messages) == 1


@pytest.mark.parametrize("rubbish", [None, 1, "yes", []])
def test_filter_that_returns_no_bool_is_a_failure_and_not_a_drop(rubbish: Any) -> None:
    @message_filter
    def vague(ctx: MessageContext) -> Any:
        return rubbish

    chain = HandlerChain("chain", source_flow=vague, destinations_flow=sink)
    with pytest.raises(ExecutionError, match=r"vague: TypeError: .*True or False"):
        chain.execute("x")


def test_transformer_that_returns_no_content_is_a_failure_naming_the_path() -> None:
    @transformer
    def dated(ctx: MessageContext) -> Any:
        return {"lines": [{"price": 1j}]}

    chain = HandlerChain("chain", source_flow=dated, destinations_flow=sink)
    with pytest.raises(ExecutionError, match=r"dated: .*content\.lines\[0\]\.price is of type builtins\.complex"):
        chain.execute("x")


def test_transformer_may_return_none_as_content() -> None:
    @transformer
    def emptied(ctx: MessageContext) -> Any:
        return None

    assert reach_sink(emptied, "x") is None


def test_processor_that_returns_something_is_a_failure() -> None:
    @processor
    def mistaken(ctx: MessageContext) -> Any:
        return ctx.get_content()

    chain = HandlerChain("chain", source_flow=mistaken, destinations_flow=sink)
    with pytest.raises(ExecutionError, match=r"mistaken: .*use @transformer"):
        chain.execute("x")


def test_property_set_by_a_processor_is_there_for_processors_and_destinations_after_it() -> None:
    @processor
    def mark(ctx: MessageContext) -> None:
        ctx.set_property("region", "eu")

    @transformer
    def use(ctx: MessageContext) -> Any:
        return [ctx.get_property("region")]

    @destination
    def tell(ctx: MessageContext) -> Any:
        return [ctx.get_property("region"), ctx.get_content()]

    with HandlerChain("chain", source_flow=[mark, use], destinations_flow=tell) as chain:
        assert chain.execute("x").destination_results == {"tell": ["eu", ["eu"]]}


def test_routed_processor_takes_the_place_of_the_router_and_the_flow_goes_on_after_it() -> None:
    @processor_router
    def to_two(ctx: MessageContext) -> Any:
        return add_two

    assert reach_sink([add_one, to_two, add_three]) == [1, 2, 3]


def test_router_may_route_by_content() -> None:
    @processor_router
    def by_size(ctx: MessageContext) -> Any:
        return add_two if len(ctx.get_content()) > 1 else add_three

    assert reach_sink(by_size, [0]) == [0, 3]
    assert reach_sink(by_size, [0, 0]) == [0, 0, 2]


def test_router_that_returns_none_goes_on_to_the_next_processor() -> None:
    @processor_router
    def no_wish(ctx: MessageContext) -> Any:
        return None

    assert reach_sink([no_wish, add_one]) == [1]


def test_router_may_route_to_a_router() -> None:
    @processor_router
    def inner(ctx: MessageContext) -> Any:
        return add_two

    @processor_router
    def outer(ctx: MessageContext) -> Any:
        return inner

    assert reach_sink([outer, add_three]) == [2, 3]


def test_routed_filter_that_returns_false_drops_the_message() -> None:
    @message_filter
    def never(ctx: MessageContext) -> bool:
        return False

    @processor_router
    def to_filter(ctx: MessageContext) -> Any:
        return never

    chain = HandlerChain("chain", source_flow=to_filter, destinations_flow=sink)
    assert chain.execute("x").dropped == "filter never returned False"


def test_router_that_routes_to_itself_is_a_failure_and_does_not_hang() -> None:
    @processor_router
    def circle(ctx: MessageContext) -> Any:
        return circle

    chain = HandlerChain("chain", source_flow=circle, destinations_flow=sink)
    with pytest.raises(ExecutionError, match="circle: RecursionError"):
        chain.execute("x")


def test_router_that_returns_what_is_no_processor_is_a_failure() -> None:
    for rubbish in (sink, "add_one", lambda ctx: None):

        @processor_router
        def lost(ctx: MessageContext, target: Any = rubbish) -> Any:
            return target

        chain = HandlerChain("chain", source_flow=lost, destinations_flow=sink)
        with pytest.raises(ExecutionError, match=r"lost: TypeError: .*decorated processor or None"):
            chain.execute("x")


@pytest.mark.parametrize("kind", [message_filter, transformer, processor, processor_router])
def test_drop_raised_by_any_processor_stops_with_success_and_is_counted(kind: Any, failure_store: Any) -> None:
    @kind
    def stop(ctx: MessageContext) -> Any:
        raise Drop("a duplicate")

    chain = HandlerChain("chain", source_flow=stop, destinations_flow=sink, failure_store=failure_store)
    result = chain.execute("x")

    assert (result.dropped, result.destination_results) == ("a duplicate", {})
    assert failure_store.messages == []
    assert chain.counts() == {"executed": 1, "delivered": 0, "filtered": 0, "dropped": 1, "failed": 0}


def test_run_source_changes_the_context_it_is_given() -> None:
    from homing.message import Message

    chain = HandlerChain("chain", source_flow=[add_one], destinations_flow=sink)
    ctx = MessageContext(Message("m1", []))
    assert run_source(chain.source, ctx).state == "processed"
    assert ctx.get_content() == [1]
    assert ctx.message.content == []


def test_run_source_ends_with_dropped_for_a_filter_that_returns_false() -> None:
    from homing.message import Message

    @message_filter
    def never(ctx: MessageContext) -> bool:
        return False

    chain = HandlerChain("chain", source_flow=never, destinations_flow=sink)
    outcome = run_source(chain.source, MessageContext(Message("m1", [])))
    assert (outcome.state, outcome.result) == ("dropped", "filter never returned False")


@pytest.mark.parametrize("content", ["text", b"\x00\xff", 7, 1.5, True, None, [1, "2"], {"a": {"b": [None]}}])
def test_any_content_enters_as_it_is_and_of_the_same_type(content: Any) -> None:
    @destination
    def keep(ctx: MessageContext) -> Any:
        return ctx.get_content()

    kept = HandlerChain("chain", destinations_flow=keep).execute(content).destination_results["keep"]
    assert kept == content
    assert type(kept) is type(content)


def test_processor_router_that_raises_is_a_failure(failure_store: Any) -> None:
    @processor_router
    def lost(ctx: MessageContext) -> Any:
        raise LookupError("no such region")

    chain = HandlerChain("chain", source_flow=lost, destinations_flow=sink, failure_store=failure_store)
    with pytest.raises(ExecutionError, match="lost: LookupError: no such region"):
        chain.execute(1)
    assert len(failure_store.messages) == 1
