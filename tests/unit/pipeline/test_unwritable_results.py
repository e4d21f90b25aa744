"""Results and contents that cannot be written down break no failure record."""

from __future__ import annotations

from typing import Any

import pytest

from homing.errors import HandlerError, UnstorableContentError
from homing.failure import as_json
from homing.message import Message, encode
from homing.pipeline import ExecutionError, HandlerChain, MessageContext, destination, transformer
from homing.pipeline.attempt import fail
from tests.flows import deliver_many

HUGE = 10**5000  # Python writes no number of so many digits


class Mute:
    """Can neither be shown nor written."""

    def __str__(self) -> str:
        raise RuntimeError("no")

    __repr__ = __str__

    def __hash__(self) -> int:
        return 7


@pytest.mark.parametrize(
    "result",
    [
        Mute(),
        {Mute(): 1},
        {"inside": Mute()},
        [Mute()],
        HUGE,
        {"number": HUGE},
        [[HUGE]],
        {HUGE: HUGE},
        {"\ud800": {1, 2}},
        float("nan"),
    ],
    ids=lambda result: type(result).__name__,
)
def test_result_that_cannot_be_written_does_not_keep_the_failure_from_being_recorded(
    failure_store: Any, result: Any
) -> None:
    @destination
    def odd(ctx: MessageContext) -> Any:
        return result

    @destination
    def down(ctx: MessageContext) -> None:
        raise OSError("away")

    chain = HandlerChain("orders", destinations_flow=[odd, down], failure_store=failure_store)
    with pytest.raises(ExecutionError, match="down: OSError: away") as failed:
        chain.execute(1, id="m1")
    assert failed.value.kept
    [entry] = failure_store.messages
    encode(entry.content)
    assert list(entry.content["done"]) == ["odd"]


def test_what_can_be_written_is_kept_and_the_rest_shown() -> None:
    assert as_json({"good": [1, "a"], 5: HUGE, "odd": Mute()}) == {"good": [1, "a"], "5": "<int>", "odd": "<Mute>"}


@pytest.mark.parametrize("content", [HUGE, -HUGE, {"a": [HUGE]}, [{"a": HUGE}]], ids=["it", "below", "dict", "list"])
def test_number_of_too_many_digits_is_refused_before_any_handler_runs(content: Any) -> None:
    with pytest.raises(UnstorableContentError, match="number"):
        encode(content)
    ran: list[Any] = []

    @destination
    def lake(ctx: MessageContext) -> None:
        ran.append(ctx.get_content())

    with pytest.raises(UnstorableContentError, match="number"):
        HandlerChain("orders", destinations_flow=lake).execute(content)
    assert ran == []


def test_transformer_that_makes_a_number_of_too_many_digits_fails(failure_store: Any) -> None:
    @transformer
    def grown(ctx: MessageContext) -> Any:
        return {"total": HUGE}

    @destination
    def lake(ctx: MessageContext) -> None: ...

    chain = HandlerChain("orders", source_flow=grown, destinations_flow=lake, failure_store=failure_store)
    with pytest.raises(ExecutionError, match="grown: UnstorableContentError"):
        chain.execute(1)
    assert len(failure_store.messages) == 1


def test_failure_on_content_that_cannot_be_copied_is_a_failure_of_the_handler() -> None:
    deep: Any = []
    for _ in range(5000):
        deep = [deep]

    @destination
    def lake(ctx: MessageContext) -> None: ...

    error = fail(lake, MessageContext(Message("m1", deep)), OSError("full"))
    assert isinstance(error, HandlerError)
    assert error.snapshot["id"] == "m1"


def test_message_nested_too_deeply_fails_no_neighbour_on_its_way_to_a_destination() -> None:
    deep: Any = []
    for _ in range(5000):
        deep = [deep]
    seen: list[Any] = []

    @destination(batch=10)
    def lake(ctxs: list[MessageContext]) -> None:
        seen.extend(ctx.get_content() for ctx in ctxs)

    contexts = [MessageContext(Message(f"m{place}", content)) for place, content in enumerate([1, deep, 3])]
    ended = deliver_many(HandlerChain("orders", destinations_flow=lake).flows[0], contexts)
    assert isinstance(ended[1].error, HandlerError)
    assert {1, 3} <= {content for content in seen if type(content) is int}
    assert [ended[place].state for place in (0, 2)] == ["delivered", "delivered"]
