"""No handler can change, by accident, what another one gets."""

from __future__ import annotations

import json
import threading
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

ORDER = {"id": 7, "lines": [{"sku": "a"}]}
WAIT = 10.0


def spoil(ctx: MessageContext) -> None:
    content = ctx.get_content()
    content["lines"][0]["sku"] = "spoilt"
    content["lines"].append("spoilt")
    ctx.message.content["lines"].clear()
    ctx.message.headers["tenant"] = "spoilt"  # type: ignore[index]


@destination
def sink(ctx: MessageContext) -> Any:
    return [ctx.get_content(), ctx.message.content, dict(ctx.message.headers)]


UNSPOILT = [ORDER, ORDER, {"tenant": "eu"}]


def run(**flows: Any) -> Any:
    content = {"id": 7, "lines": [{"sku": "a"}]}
    with HandlerChain("orders", **flows) as chain:
        try:
            return chain.execute(content, headers={"tenant": "eu"})
        finally:
            assert content == ORDER


def test_content_changed_in_place_by_a_processor_is_changed_for_nobody_else() -> None:
    @message_filter
    def spoiling_filter(ctx: MessageContext) -> bool:
        spoil(ctx)
        return True

    @processor
    def spoiling_processor(ctx: MessageContext) -> None:
        seen.append(json.dumps(sink(ctx)))
        spoil(ctx)

    seen: list[str] = []
    result = run(source_flow=[spoiling_filter, spoiling_processor], destinations_flow=sink)
    assert [json.loads(state) for state in seen] == [UNSPOILT]
    assert result.destination_results["sink"] == UNSPOILT
    assert result.message.content == ORDER


def test_content_changed_in_place_by_a_destination_is_changed_for_no_other() -> None:
    spoilt = threading.Event()

    @destination
    def spoiling(ctx: MessageContext) -> None:
        spoil(ctx)
        spoilt.set()

    @destination
    def later(ctx: MessageContext) -> Any:
        assert spoilt.wait(WAIT)
        return sink(ctx)

    assert run(destinations_flow=[spoiling, later]).destination_results["later"] == UNSPOILT


def test_content_changed_in_place_by_a_router_is_changed_for_nobody_else() -> None:
    @destination_router
    def spoiling(ctx: MessageContext) -> Any:
        spoil(ctx)
        return sink

    assert run(destinations_flow=spoiling).destination_results["sink"] == UNSPOILT


def test_each_attempt_of_a_destination_gets_its_own_copy() -> None:
    seen: list[str] = []

    @destination(max_retries=2, retry_interval=0.001)
    def flaky(ctx: MessageContext) -> None:
        seen.append(json.dumps([sink(ctx), ctx.has_property("tried")]))
        ctx.set_property("tried", True)
        spoil(ctx)
        raise OSError

    with pytest.raises(ExecutionError):
        run(destinations_flow=flaky)
    assert [json.loads(state) for state in seen] == [[UNSPOILT, False]] * 3


def test_failure_record_has_the_original_whatever_handlers_did_to_their_copies() -> None:
    @processor
    def spoiling(ctx: MessageContext) -> None:
        spoil(ctx)
        raise OSError

    with pytest.raises(ExecutionError) as failure:
        run(source_flow=spoiling, destinations_flow=sink)
    message = read_record(failure.value.message.content).message
    assert (message.content, message.headers) == (ORDER, {"tenant": "eu"})


def test_content_a_transformer_returned_and_kept_cannot_be_changed_by_it_later() -> None:
    kept: list[Any] = []

    @transformer
    def hoarding(ctx: MessageContext) -> Any:
        kept.append(ctx.get_content())
        return kept[0]

    @processor
    def spoiling(ctx: MessageContext) -> None:
        kept[0]["lines"].append("spoilt")

    result = run(source_flow=[hoarding, spoiling], destinations_flow=sink)
    assert result.destination_results["sink"][0] == ORDER


def test_handler_sees_its_own_changes_within_one_call() -> None:
    @transformer
    def stepwise(ctx: MessageContext) -> Any:
        ctx.get_content()["paid"] = True
        return ctx.get_content()

    result = run(source_flow=stepwise, destinations_flow=sink)
    assert result.destination_results["sink"][0] == {**ORDER, "paid": True}


def test_content_given_to_execute_may_be_changed_by_the_caller_meanwhile() -> None:
    content = {"lines": [1]}

    @processor
    def caller_goes_on(ctx: MessageContext) -> None:
        content["lines"].append(2)

    chain = HandlerChain("orders", source_flow=caller_goes_on, destinations_flow=sink)
    assert chain.execute(content).destination_results["sink"][0] == {"lines": [1]}
