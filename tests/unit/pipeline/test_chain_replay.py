"""Replaying a failed message."""

from __future__ import annotations

from typing import Any

import pytest

from homing.errors import UnreadableMessageError
from homing.failure import build_record, read_record
from homing.message import Message
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


class Calls:
    """What ran, and which destinations refuse."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.refusing: set[str] = set()

    def to(self, name: str) -> str:
        self.ran.append(name)
        if name in self.refusing:
            raise OSError(f"{name} refused")
        return f"{name}-ok"


@pytest.fixture
def calls() -> Calls:
    return Calls()


@pytest.fixture
def chain(calls: Calls, failure_store: Any) -> Any:
    @transformer
    def doubled(ctx: MessageContext) -> Any:
        calls.ran.append("doubled")
        return ctx.get_content() * 2

    @destination
    def crm(ctx: MessageContext) -> Any:
        return calls.to("crm")

    @destination
    def lake(ctx: MessageContext) -> Any:
        calls.to("lake")
        return ctx.get_content()

    with HandlerChain(
        "orders", source_flow=doubled, destinations_flow=[crm, lake], failure_store=failure_store
    ) as built:
        yield built


def failed(chain: HandlerChain, calls: Calls, *refusing: str) -> ExecutionError:
    calls.refusing = set(refusing)
    with pytest.raises(ExecutionError) as failure:
        chain.execute(2, id="m1")
    calls.ran.clear()
    calls.refusing = set()
    return failure.value


def test_replay_runs_all_processors_and_only_the_destinations_not_done(chain: Any, calls: Calls) -> None:
    error = failed(chain, calls, "lake")
    result = chain.replay(error.message)
    assert calls.ran == ["doubled", "lake"]
    assert result.destination_results == {"lake": 4}


def test_replay_starts_from_the_original_content_with_the_original_id(chain: Any, calls: Calls) -> None:
    result = chain.replay(failed(chain, calls, "lake").message)
    assert (result.message.id, result.message.content) == ("m1", 4)


def test_replay_takes_the_message_of_the_failure_store(chain: Any, calls: Calls, failure_store: Any) -> None:
    failed(chain, calls, "lake")
    chain.replay(failure_store.retrieve())
    assert calls.ran == ["doubled", "lake"]


def test_replay_takes_the_record_itself(chain: Any, calls: Calls, failure_store: Any) -> None:
    failed(chain, calls, "crm")
    chain.replay(failure_store.retrieve().content)
    assert calls.ran == ["doubled", "crm"]


def test_entry_moved_to_another_store_can_be_replayed(chain: Any, calls: Calls, failure_store: Any) -> None:
    failed(chain, calls, "lake")
    replay_store = type(failure_store)()
    replay_store.store(failure_store.retrieve().content)
    assert chain.replay(replay_store.retrieve()).destination_results == {"lake": 4}


def test_replay_after_a_failed_processor_reaches_every_destination(calls: Calls) -> None:
    @processor
    def check(ctx: MessageContext) -> None:
        calls.to("check")

    @destination
    def crm(ctx: MessageContext) -> Any:
        return calls.to("crm")

    chain = HandlerChain("orders", source_flow=check, destinations_flow=crm)
    error = failed(chain, calls, "check")
    assert chain.replay(error.message).destination_results == {"crm": "crm-ok"}


def test_replay_that_fails_again_knows_everything_done_by_then(chain: Any, calls: Calls) -> None:
    error = failed(chain, calls, "crm", "lake")
    calls.refusing = {"crm"}
    with pytest.raises(ExecutionError, match="crm: OSError: crm refused") as again:
        chain.replay(error.message)

    assert read_record(again.value.message.content).done == {"lake": 4}
    assert again.value.message.id == error.message.id
    calls.ran.clear()
    calls.refusing = set()
    chain.replay(again.value.message)
    assert calls.ran == ["doubled", "crm"]


def test_replay_that_fails_again_keeps_the_results_of_the_first_execution(chain: Any, calls: Calls) -> None:
    error = failed(chain, calls, "lake")
    calls.refusing = {"lake"}
    with pytest.raises(ExecutionError) as again:
        chain.replay(error.message)
    assert read_record(again.value.message.content).done == {"crm": "crm-ok"}


def test_replay_that_fails_again_leaves_the_one_entry_in_the_failure_store(
    chain: Any, calls: Calls, failure_store: Any
) -> None:
    error = failed(chain, calls, "lake")
    calls.refusing = {"lake"}
    with pytest.raises(ExecutionError):
        chain.replay(error.message)
    assert [entry.id for entry in failure_store.messages] == [error.message.id]


def test_replay_keeps_the_original_properties_and_batch() -> None:
    @destination
    def crm(ctx: MessageContext) -> Any:
        if ctx.get_property("tenant") != "eu":
            raise AssertionError
        raise OSError("refused")

    record = build_record(
        Message("m1", 1), {"tenant": "eu"}, errors={}, done={}, snapshot={}, chain="orders", batch_id="b7"
    )
    with pytest.raises(ExecutionError, match="refused") as failure:
        HandlerChain("orders", destinations_flow=crm).replay(record)
    again = read_record(failure.value.message.content)
    assert (again.properties, again.batch_id) == ({"tenant": "eu"}, "b7")


def test_filtered_destination_is_done_and_not_tried_again_by_a_replay(calls: Calls) -> None:
    @message_filter
    def never(ctx: MessageContext) -> bool:
        calls.ran.append("never")
        return False

    @destination
    def crm(ctx: MessageContext) -> Any:
        return calls.to("crm")

    @destination
    def lake(ctx: MessageContext) -> Any:
        return calls.to("lake")

    with HandlerChain("orders", destinations_flow=[([never], crm), lake]) as chain:
        error = failed(chain, calls, "lake")
        chain.replay(error.message)
    assert calls.ran == ["lake"]


def test_router_that_delivered_is_not_asked_again_by_a_replay(calls: Calls) -> None:
    @destination
    def crm(ctx: MessageContext) -> Any:
        return calls.to("crm")

    @destination
    def lake(ctx: MessageContext) -> Any:
        return calls.to("lake")

    @destination_router
    def route(ctx: MessageContext) -> Any:
        return crm

    with HandlerChain("orders", destinations_flow=[route, lake]) as chain:
        error = failed(chain, calls, "lake")
        chain.replay(error.message)
    assert calls.ran == ["lake"]


def test_record_of_another_chain_is_refused(chain: Any, calls: Calls) -> None:
    error = failed(chain, calls, "lake")

    @destination
    def other(ctx: MessageContext) -> None:
        calls.ran.append("other")

    with pytest.raises(UnreadableMessageError, match=r"message m1 failed in chain 'orders'.*'invoices'"):
        HandlerChain("invoices", destinations_flow=other).replay(error.message)
    assert calls.ran == []


@pytest.mark.parametrize("content", ["text", 7, {}, {"homing": "failure"}, [1], None])
def test_what_is_no_failure_record_is_refused(chain: Any, calls: Calls, content: Any) -> None:
    with pytest.raises(UnreadableMessageError):
        chain.replay(Message("e1", content))
    assert calls.ran == []
