"""Headers that processors change, and the context that a caller of `execute` gets back."""

from __future__ import annotations

from typing import Any

import pytest

from homing.failure import read_record
from homing.pipeline import (
    ExecutionError,
    HandlerChain,
    MessageContext,
    destination,
    destination_router,
    message_filter,
    processor,
    transformer,
)


@processor
def stamped(ctx: MessageContext) -> None:
    ctx.set_header("trace", f"{ctx.get_header('trace')}+1")
    ctx.remove_header("tenant")
    ctx.set_property("seen_by", ["stamped"])


@destination
def crm(ctx: MessageContext) -> Any:
    return ctx.get_headers()


@destination
def lake(ctx: MessageContext) -> Any:
    return ctx.get_headers()


def run(headers: dict[str, Any], **flows: Any) -> Any:
    with HandlerChain("orders", **flows) as chain:
        return chain.execute({"n": 1}, id="m1", headers=headers)


def test_headers_changed_by_a_processor_reach_every_destination_and_the_result() -> None:
    result = run({"trace": "t", "tenant": "eu"}, source_flow=stamped, destinations_flow=[crm, lake])
    assert result.destination_results == {"crm": {"trace": "t+1"}, "lake": {"trace": "t+1"}}
    assert result.message.headers == {"trace": "t+1"}


def test_headers_changed_for_one_destination_reach_no_other() -> None:
    @processor
    def marked(ctx: MessageContext) -> None:
        ctx.set_header("for", "crm")

    @destination_router
    def to_crm(ctx: MessageContext) -> Any:
        ctx.set_header("router", "was here")
        return [marked], crm

    result = run({}, destinations_flow=[to_crm, lake])
    assert result.destination_results == {"crm": {"router": "was here", "for": "crm"}, "lake": {}}
    assert result.message.headers == {}


def test_each_attempt_starts_from_the_headers_the_processors_left() -> None:
    seen = []

    @destination(max_retries=1, retry_interval=0.01)
    def flaky(ctx: MessageContext) -> None:
        seen.append(ctx.get_headers())
        ctx.set_header("attempt", 1)
        if len(seen) == 1:
            raise ConnectionError

    run({"trace": "t", "tenant": "eu"}, source_flow=stamped, destinations_flow=flaky)
    assert seen == [{"trace": "t+1"}, {"trace": "t+1"}]


def test_batch_destination_gets_the_changed_headers() -> None:
    @destination(batch=10)
    def many(contexts: list[MessageContext]) -> list[Any]:
        return [ctx.get_headers() for ctx in contexts]

    result = run({"trace": "t", "tenant": "eu"}, source_flow=stamped, destinations_flow=many)
    assert result.destination_results == {"many": {"trace": "t+1"}}


def test_a_replay_starts_from_the_original_headers_and_the_record_shows_the_changed_ones() -> None:
    refusing = [True]

    @destination
    def picky(ctx: MessageContext) -> Any:
        if refusing.pop():
            raise ConnectionError("down")
        return ctx.get_headers()

    refusing.insert(0, False)
    with HandlerChain("orders", source_flow=stamped, destinations_flow=[picky]) as chain:
        with pytest.raises(ExecutionError) as failure:
            chain.execute({"n": 1}, headers={"trace": "t", "tenant": "eu"})
        record = failure.value.message.content
        assert record["snapshot"]["picky"]["headers"] == {"trace": "t+1"}
        assert read_record(record).message.headers == {"trace": "t", "tenant": "eu"}
        result = chain.replay(failure.value.message)
    assert result.destination_results == {"picky": {"trace": "t+1"}}
    assert result.context.get_headers() == {"trace": "t+1"}
    assert result.context.get_property("seen_by") == ["stamped"]


def test_a_header_that_no_store_takes_fails_the_processor_that_sets_it() -> None:
    @processor
    def wrong(ctx: MessageContext) -> None:
        ctx.set_header("when", object())

    with pytest.raises(ExecutionError, match="wrong: UnstorableContentError: cannot set the header 'when'"):
        run({}, source_flow=wrong, destinations_flow=crm)


def test_the_result_carries_the_context_with_the_properties_that_processors_set() -> None:
    result = run({"trace": "t", "tenant": "eu"}, source_flow=stamped, destinations_flow=[crm, lake])
    assert result.context.get_id() == "m1"
    assert result.context.get_property("seen_by") == ["stamped"]
    assert result.context.message.headers == {"trace": "t", "tenant": "eu"}


def test_the_context_of_the_result_is_as_the_source_flow_left_it() -> None:
    @transformer
    def doubled(ctx: MessageContext) -> Any:
        return {"n": 2}

    @processor
    def of_crm_only(ctx: MessageContext) -> None:
        ctx.set_property("for", "crm")

    result = run({}, source_flow=doubled, destinations_flow=[([of_crm_only], crm), lake])
    assert result.context.get_content() == {"n": 2}
    assert not result.context.has_property("for")


def test_the_context_of_a_dropped_message_has_what_was_set_before() -> None:
    @message_filter
    def never(ctx: MessageContext) -> bool:
        ctx.set_property("why", "never")
        return False

    result = run({"trace": "t", "tenant": "eu"}, source_flow=[stamped, never], destinations_flow=crm)
    assert result.dropped
    assert result.context.get_property("why") == "never"
    assert result.context.get_headers() == {"trace": "t+1"}


def test_what_a_handler_still_holds_changes_nothing_in_the_context_of_the_result() -> None:
    held = []

    @processor
    def keeping(ctx: MessageContext) -> None:
        held.append(ctx.get_content())

    result = run({}, source_flow=keeping, destinations_flow=crm)
    held[0]["n"] = "changed"
    assert result.context.get_content() == {"n": 1}
