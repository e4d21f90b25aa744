"""Decorators: names, signatures, binding, async functions, pickling by reference."""

from __future__ import annotations

import asyncio
import inspect
import pickle
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from homing.errors import ChainError, ConfigurationError
from homing.message import Message
from homing.pipeline import (
    ExecutionError,
    Handler,
    HandlerChain,
    MessageContext,
    destination,
    destination_router,
    message_filter,
    processor,
    processor_router,
    transformer,
)
from homing.retry import RetryPolicy

if TYPE_CHECKING:
    from collections import OrderedDict


@transformer
def declared_before_its_type(order: Order) -> Any:
    return order.id


@dataclass
class Order:
    id: int


@destination
def sink(ctx: MessageContext) -> Any:
    return ctx.get_content()


@transformer(name="normalised")
def normalise(order: Order, ctx: MessageContext) -> OrderedDict[str, Any]:
    """Makes it normal."""
    return {"id": order.id, "message": ctx.get_id()}  # type: ignore[return-value]


def invoke(handler: Handler, content: Any) -> Any:
    return handler.invoke(MessageContext(Message("m1", content)))


@pytest.mark.parametrize(
    "decorator",
    [message_filter, transformer, processor, processor_router, destination, destination_router],
)
def test_decorator_works_bare_with_parentheses_and_with_a_name(decorator: Any) -> None:
    def handle(ctx: MessageContext) -> None: ...

    assert decorator(handle).name == "handle"
    assert decorator()(handle).name == "handle"
    assert decorator(name="other")(handle).name == "other"


def test_destination_is_not_retried_by_default() -> None:
    assert sink.policy.max_retries == 0


def test_destination_keeps_its_retry_policy() -> None:
    @destination(max_retries=2, retry_interval=1)
    def crm(ctx: MessageContext) -> None: ...

    assert crm.policy == RetryPolicy(2, 1)


@pytest.mark.parametrize("options", [{"max_retries": -1}, {"retry_interval": 0}, {"retry_interval": -1}])
def test_destination_with_impossible_retries_is_refused(options: Any) -> None:
    with pytest.raises(ConfigurationError):
        destination(**options)


def test_handler_can_be_called_like_the_function_it_was() -> None:
    assert normalise(Order(7), MessageContext(Message("m1", None))) == {"id": 7, "message": "m1"}
    assert normalise.__doc__ == "Makes it normal."
    assert list(inspect.signature(normalise).parameters) == ["order", "ctx"]


def test_handler_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        sink.name = "other"  # type: ignore[misc]


def test_only_parameter_without_annotation_gets_the_context() -> None:
    @transformer
    def untyped(anything):  # type: ignore[no-untyped-def]
        return anything.get_id()

    assert invoke(untyped, "x") == "m1"


def test_parameter_annotated_so_gets_the_context_wherever_it_stands() -> None:
    @transformer
    def first(c: MessageContext, order: Order) -> Any:
        return [c.get_id(), order.id]

    @transformer
    def second(order: Order, c: MessageContext) -> Any:
        return [c.get_id(), order.id]

    assert invoke(first, {"id": 7}) == ["m1", 7]
    assert invoke(second, {"id": 7}) == ["m1", 7]


def test_typed_parameter_gets_the_content_as_that_type() -> None:
    @transformer
    def typed(order: Order) -> Any:
        return [type(order), order.id]

    assert invoke(typed, {"id": 7}) == [Order, 7]


def test_untyped_parameter_beside_ctx_gets_the_content_as_it_is() -> None:
    @transformer
    def pair(order, ctx):  # type: ignore[no-untyped-def]
        return [order, ctx.get_id()]

    assert invoke(pair, {"id": 7}) == [{"id": 7}, "m1"]


def test_parameters_with_defaults_are_left_alone() -> None:
    @transformer
    def tuned(order: Order, factor: int = 3, *, offset: int = 1) -> Any:
        return order.id * factor + offset

    assert invoke(tuned, {"id": 7}) == 22


def test_type_may_be_defined_after_the_handler_and_return_types_are_never_needed() -> None:
    with HandlerChain("chain", source_flow=declared_before_its_type, destinations_flow=sink) as chain:
        assert chain.execute({"id": 7}).destination_results == {"sink": 7}
    assert invoke(normalise, {"id": 7}) == {"id": 7, "message": "m1"}


def test_content_that_does_not_fit_the_type_is_a_failure_naming_handler_and_type() -> None:
    chain = HandlerChain("chain", source_flow=normalise, destinations_flow=sink)
    with pytest.raises(ExecutionError, match=r"normalised: BindingError: .*Order.*id"):
        chain.execute({"id": "seven"})


@pytest.mark.parametrize(
    "function",
    [
        lambda: None,
        lambda a, b: None,
        lambda a, b, c: None,
        lambda self, ctx: None,
        lambda *, ctx: None,
    ],
)
def test_signature_no_handler_may_have_is_refused(function: Any) -> None:
    with pytest.raises(ChainError, match="takes a MessageContext, the content, or both"):
        transformer(name="odd")(function)


def test_type_no_content_can_become_is_refused() -> None:
    def lock(value: threading.Event) -> Any:
        return value

    with pytest.raises(ChainError, match="handler 'lock', parameter 'value'"):
        transformer(lock)


def test_handler_cannot_be_decorated_twice() -> None:
    with pytest.raises(ChainError, match="'sink' is a destination already"):
        transformer(sink)


def test_what_is_no_function_is_refused() -> None:
    with pytest.raises(ChainError, match="made from a function"):
        transformer(7)  # type: ignore[call-overload]


@pytest.mark.parametrize("name", ["", " ", 7])
def test_name_that_is_none_is_refused(name: Any) -> None:
    with pytest.raises(ChainError, match="needs a name"):
        transformer(name=name)(lambda ctx: None)


def test_generator_is_refused_because_calling_it_would_run_nothing() -> None:
    def lazy(ctx: MessageContext) -> Any:
        yield 1

    with pytest.raises(ChainError, match="'lazy' is a generator"):
        destination(lazy)


def test_async_handlers_of_every_kind_run_to_completion() -> None:
    @message_filter
    async def checked(ctx: MessageContext) -> bool:
        await asyncio.sleep(0)
        return True

    @transformer
    async def fetched(order: Order) -> Any:
        await asyncio.sleep(0)
        return order.id

    @destination
    async def sent(ctx: MessageContext) -> Any:
        await asyncio.sleep(0)
        return ctx.get_content()

    with HandlerChain("chain", source_flow=[checked, fetched], destinations_flow=[sent, sink]) as chain:
        assert chain.execute({"id": 7}).destination_results == {"sent": 7, "sink": 7}


def test_coroutine_returned_by_a_plain_function_is_awaited_too() -> None:
    done: list[str] = []

    async def send() -> str:
        done.append("sent")
        return "ok"

    @destination
    def crm(ctx: MessageContext) -> Any:
        return send()

    assert HandlerChain("chain", destinations_flow=crm).execute(1).destination_results == {"crm": "ok"}
    assert done == ["sent"]


def test_async_handler_that_raises_is_a_failure() -> None:
    @destination
    async def crm(ctx: MessageContext) -> None:
        raise OSError("refused")

    with pytest.raises(ExecutionError, match="crm: OSError: refused"):
        HandlerChain("chain", destinations_flow=crm).execute(1)


def test_async_handler_that_exits_is_a_failure_and_later_messages_still_run() -> None:
    @destination
    async def crm(ctx: MessageContext) -> Any:
        if ctx.get_content() == "poison":
            raise SystemExit(1)
        return "ok"

    chain = HandlerChain("chain", destinations_flow=crm)
    with pytest.raises(ExecutionError, match="crm: SystemExit"):
        chain.execute("poison")
    assert chain.execute("good").destination_results == {"crm": "ok"}


def test_async_handlers_share_one_loop_so_a_client_outlives_a_message() -> None:
    loops: list[Any] = []

    @destination
    async def left(ctx: MessageContext) -> None:
        loops.append(asyncio.get_running_loop())

    @destination
    async def right(ctx: MessageContext) -> None:
        loops.append(asyncio.get_running_loop())

    with HandlerChain("chain", destinations_flow=[left, right]) as chain:
        chain.execute(1)
        chain.execute(2)
    assert len(loops) == 4
    assert len(set(loops)) == 1


def test_chain_with_async_handlers_can_be_executed_from_a_running_loop() -> None:
    @destination
    async def crm(ctx: MessageContext) -> str:
        return "ok"

    chain = HandlerChain("chain", destinations_flow=crm)

    async def main() -> Any:
        return chain.execute(1)

    assert asyncio.run(main()).destination_results == {"crm": "ok"}


def test_async_handler_that_runs_another_async_chain_fails_and_does_not_hang() -> None:
    @destination
    async def inner(ctx: MessageContext) -> str:
        return "ok"

    inner_chain = HandlerChain("inner", destinations_flow=inner)

    @destination
    async def outer(ctx: MessageContext) -> Any:
        return inner_chain.execute(1)

    with pytest.raises(ExecutionError, match="an async handler cannot run another chain"):
        HandlerChain("outer", destinations_flow=outer).execute(1)


@pytest.mark.parametrize("handler", [sink, normalise, declared_before_its_type])
def test_handler_is_pickled_to_itself(handler: Handler) -> None:
    pickled = pickle.dumps(handler)
    assert pickle.loads(pickled) is handler  # noqa: S301
    assert len(pickled) < 200


def test_handler_that_cannot_be_imported_by_name_is_not_pickled() -> None:
    @destination
    def local(ctx: MessageContext) -> None: ...

    with pytest.raises((pickle.PicklingError, AttributeError), match="local"):
        pickle.dumps(local)
