"""Destinations that take batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pydantic
import pytest

from homing.errors import BindingError, ChainError
from homing.invocation.batch_result import PartialFailure
from homing.ledger import DELIVERED, DROPPED, FILTERED
from homing.message import Message
from homing.pipeline import (
    Drop,
    ExecutionError,
    HandlerChain,
    MessageContext,
    destination,
    destination_router,
    message_filter,
    transformer,
)
from homing.retry import RetryPolicy
from tests.flows import deliver_many


@dataclass
class Order:
    number: int


def contexts(*contents: Any) -> list[MessageContext]:
    return [MessageContext(Message(f"m{place}", content)) for place, content in enumerate(contents)]


def delivered(chain: HandlerChain, *contents: Any) -> list[Any]:
    """What became of each, in the order given."""
    ended = deliver_many(chain.flows[0], contexts(*contents))
    assert sorted(ended) == list(range(len(contents)))
    return [ended[place] for place in range(len(contents))]


def states(ended: list[Any]) -> list[str]:
    return [item.state for item in ended]


def chain_to(target: Any) -> HandlerChain:
    return HandlerChain("orders", destinations_flow=target)


def test_batches_are_as_large_as_the_destination_says_and_every_message_is_in_one() -> None:
    sizes, seen = [], []

    @destination(batch=3)
    def lake(ctxs: list[MessageContext]) -> None:
        sizes.append(len(ctxs))
        seen.extend(ctx.get_content() for ctx in ctxs)

    assert states(delivered(chain_to(lake), *range(7))) == [DELIVERED] * 7
    assert sizes == [3, 3, 1]
    assert seen == list(range(7))


def test_results_are_those_of_each_message() -> None:
    @destination(batch=10)
    def lake(ctxs: Any) -> Any:
        return [f"row {ctx.get_content()}" for ctx in ctxs]

    assert [item.result for item in delivered(chain_to(lake), 7, 8)] == ["row 7", "row 8"]


def test_execute_gives_a_batch_of_one() -> None:
    @destination(batch=500)
    def lake(orders: list[Order]) -> Any:
        return [order.number for order in orders]

    assert chain_to(lake).execute({"number": 7}).destination_results == {"lake": 7}


def test_exception_in_the_list_fails_only_its_message() -> None:
    @destination(batch=10)
    def lake(ctxs: Any) -> Any:
        return [OSError("full") if ctx.get_content() == 2 else None for ctx in ctxs]

    ended = delivered(chain_to(lake), 1, 2, 3)
    assert states(ended) == [DELIVERED, "failed", DELIVERED]
    assert str(ended[1].error) == "destination 'lake' failed on message m1: OSError: full"


@pytest.mark.parametrize("key", [1, "m1"])
def test_partial_failure_names_messages_by_position_or_id(key: Any) -> None:
    @destination(batch=10)
    def lake(ctxs: Any) -> Any:
        raise PartialFailure({key: "no such customer"})

    ended = delivered(chain_to(lake), 1, 2, 3)
    assert states(ended) == [DELIVERED, "failed", DELIVERED]
    assert "no such customer" in str(ended[1].error)


def test_a_position_of_numpys_is_a_position_and_no_id() -> None:
    @destination(batch=10)
    def lake(ctxs: Any) -> Any:
        raise PartialFailure({np.int64(0): "no such customer"})

    numbered = [MessageContext(Message(message_id, message_id)) for message_id in ("1", "0")]
    ended = deliver_many(chain_to(lake).flows[0], numbered)
    assert [ended[0].state, ended[1].state] == ["failed", DELIVERED]


@pytest.mark.parametrize("key", [9, -1, np.int64(9), True, 1.0, None])
def test_failure_named_by_what_is_neither_position_nor_id_fails_the_batch(key: Any) -> None:
    @destination(batch=10)
    def lake(ctxs: Any) -> Any:
        raise PartialFailure({key: "?"})

    assert states(delivered(chain_to(lake), 1, 2)) == ["failed", "failed"]


def test_only_what_failed_is_tried_again() -> None:
    calls: list[list[int]] = []

    @destination(batch=10, max_retries=2, retry_interval=0.01)
    def lake(ctxs: Any) -> Any:
        calls.append([ctx.get_content() for ctx in ctxs])
        return [OSError() if ctx.get_content() == 2 and len(calls) < 3 else None for ctx in ctxs]

    ended = delivered(chain_to(lake), 1, 2, 3)
    assert calls == [[1, 2, 3], [2], [2]]
    assert [item.attempts for item in ended] == [1, 3, 1]


def test_each_attempt_of_a_batch_gets_its_own_copies() -> None:
    seen: list[Any] = []

    @destination(batch=10, max_retries=1, retry_interval=0.01)
    def lake(ctxs: Any) -> Any:
        for ctx in ctxs:
            seen.append(list(ctx.get_content()))
            ctx.get_content().append("spoilt")
            ctx.set_property("tried", True)
        return [OSError() for _ in ctxs]

    ended = delivered(chain_to(lake), ["a"])
    assert seen == [["a"], ["a"]]
    assert ended[0].error.snapshot["properties"] == {}


def test_call_that_raises_without_saying_which_fails_no_good_message() -> None:
    calls: list[list[int]] = []

    @destination(batch=10)
    def lake(ctxs: Any) -> Any:
        calls.append([ctx.get_content() for ctx in ctxs])
        if 2 in calls[-1]:
            raise OSError("bad row")

    ended = delivered(chain_to(lake), 1, 2, 3)
    assert states(ended) == [DELIVERED, "failed", DELIVERED]
    assert calls == [[1, 2, 3], [1], [2], [3]]


def test_base_exception_in_a_batch_is_a_failure_of_messages() -> None:
    @destination(batch=10)
    def lake(ctxs: Any) -> Any:
        raise SystemExit(3)

    assert states(delivered(chain_to(lake), 1, 2)) == ["failed", "failed"]


def test_content_that_does_not_fit_fails_alone_and_is_not_passed_on() -> None:
    seen = []

    @destination(batch=10)
    def lake(orders: list[Order]) -> None:
        seen.extend(order.number for order in orders)

    ended = delivered(chain_to(lake), {"number": 1}, {"number": "two"}, {"number": 3})
    assert states(ended) == [DELIVERED, "failed", DELIVERED]
    assert isinstance(ended[1].error.__cause__, BindingError)
    assert seen == [1, 3]


class Model(pydantic.BaseModel):
    number: int

    @pydantic.field_validator("number")
    @classmethod
    def check(cls, number: int) -> int:
        if number == 2:
            raise SystemExit("a validator that ends the program")
        return number


def test_base_exception_in_binding_fails_its_message_alone() -> None:
    seen = []

    @destination(batch=10)
    def lake(orders: list[Model]) -> None:
        seen.extend(order.number for order in orders)

    ended = delivered(chain_to(lake), {"number": 1}, {"number": 2}, {"number": 3})
    assert states(ended) == [DELIVERED, "failed", DELIVERED]
    assert isinstance(ended[1].error.__cause__, SystemExit)
    assert seen == [1, 3]


@pytest.mark.parametrize("returned", [7, "ok", [None], {"m0": None}])
def test_rubbish_returned_for_a_batch_fails_all_of_it_and_delivers_nothing_again(returned: Any) -> None:
    calls = []

    @destination(batch=10, max_retries=3, retry_interval=0.01)
    def lake(ctxs: Any) -> Any:
        calls.append(len(ctxs))
        return returned

    ended = delivered(chain_to(lake), 1, 2)
    assert states(ended) == ["failed", "failed"]
    assert "one result or exception per message" in str(ended[0].error)
    assert calls == [2]


def test_drop_in_the_list_drops_only_its_message() -> None:
    @destination(batch=10)
    def lake(ctxs: Any) -> Any:
        return [Drop("old") if ctx.get_content() == 1 else None for ctx in ctxs]

    assert states(delivered(chain_to(lake), 1, 2)) == [DROPPED, DELIVERED]


def test_drop_raised_for_a_batch_drops_only_those_it_is_raised_for_alone() -> None:
    @destination(batch=10)
    def lake(ctxs: Any) -> Any:
        if any(ctx.get_content() == 1 for ctx in ctxs):
            raise Drop("old")

    assert states(delivered(chain_to(lake), 1, 2)) == [DROPPED, DELIVERED]


def test_own_processors_run_for_each_message_of_a_batch() -> None:
    @message_filter
    def odd(ctx: MessageContext) -> bool:
        return bool(ctx.get_content() % 2)

    @transformer
    def inverse(ctx: MessageContext) -> Any:
        return 60 // (ctx.get_content() - 3)

    @destination(batch=10)
    def lake(ctxs: Any) -> Any:
        return [ctx.get_content() for ctx in ctxs]

    ended = delivered(chain_to(([odd, inverse], lake)), 1, 2, 3, 5)
    assert states(ended) == [DELIVERED, FILTERED, "failed", DELIVERED]
    assert (ended[0].result, ended[3].result) == (-30, 30)


def test_messages_routed_to_one_destination_share_a_batch() -> None:
    sizes = []

    @destination(batch=10)
    def lake(ctxs: Any) -> None:
        sizes.append(len(ctxs))

    @destination
    def crm(ctx: MessageContext) -> Any:
        return ctx.get_content()

    @destination_router
    def route(ctx: MessageContext) -> Any:
        content = ctx.get_content()
        return None if content == 0 else (crm if content == 1 else lake)

    ended = delivered(chain_to(route), 0, 1, 2, 3)
    assert states(ended) == [DROPPED, DELIVERED, DELIVERED, DELIVERED]
    assert sizes == [2]


def test_deliver_many_serves_destinations_that_take_one_message() -> None:
    @destination
    def crm(ctx: MessageContext) -> Any:
        if ctx.get_content() == 2:
            raise OSError("refused")
        return ctx.get_content()

    assert states(delivered(chain_to(crm), 1, 2, 3)) == [DELIVERED, "failed", DELIVERED]


def test_failed_batch_of_one_is_kept_in_the_failure_store(failure_store: Any) -> None:
    @destination(batch=10)
    def lake(ctxs: Any) -> Any:
        return [OSError("full")]

    chain = HandlerChain("orders", destinations_flow=lake, failure_store=failure_store)
    with pytest.raises(ExecutionError, match="lake: OSError: full"):
        chain.execute(1)
    assert len(failure_store.messages) == 1


@pytest.mark.parametrize("size", [0, -1, 2.5, "10", True])
def test_impossible_batch_size_is_refused(size: Any) -> None:
    with pytest.raises(ChainError, match="batch"):
        destination(batch=size)


def test_batch_destination_takes_one_list() -> None:
    with pytest.raises(ChainError, match="one parameter, a list"):

        @destination(batch=10)
        def two(orders: list[Order], ctxs: Any) -> None: ...

    with pytest.raises(ChainError, match="must be a list, got"):

        @destination(batch=10)
        def one(order: Order) -> None: ...


def test_retry_policy_and_its_short_form_contradict_each_other() -> None:
    with pytest.raises(ChainError, match="retry="):
        destination(retry=RetryPolicy(2), max_retries=3)
    with pytest.raises(ChainError, match="RetryPolicy"):
        destination(retry=3)  # type: ignore[call-overload]
    assert destination(retry=RetryPolicy(2))(lambda ctx: None).policy == RetryPolicy(2)
