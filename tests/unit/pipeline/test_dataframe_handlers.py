"""Handlers that take DataFrames, where there is no Spark: refused with a clear error."""

from __future__ import annotations

import pytest

from homing import ExecutionError, HandlerChain, destination, message_filter, open_store, processor_router, transformer
from homing.errors import ChainError


@transformer(dataframe=True)
def priced(messages):  # type: ignore[no-untyped-def]
    return messages


@destination
def crm(ctx) -> str:  # type: ignore[no-untyped-def]
    return "taken"


def test_a_chain_with_a_dataframe_handler_runs_on_spark_only_and_fails_no_message() -> None:
    failures = open_store("memory://dataframe_failures")
    chain = HandlerChain("orders", source_flow=[priced], destinations_flow=[crm], failure_store=failures)
    with pytest.raises(ChainError, match="'priced' takes a whole DataFrame and runs on Spark only"):
        chain.execute({"n": 1})
    assert failures.retrieve() is None


def test_a_router_that_picks_a_dataframe_handler_fails_the_message_with_that_reason() -> None:
    route = processor_router(name="route")(lambda ctx: priced)
    chain = HandlerChain("orders", source_flow=[route], destinations_flow=[crm])
    with pytest.raises(ExecutionError, match="and no router can pick it"):
        chain.execute({"n": 1})


@pytest.mark.parametrize("option", [{"batch": 3}, {"max_retries": 1}, {"setup": dict}])
def test_a_dataframe_destination_has_no_options_of_other_destinations(option: dict[str, object]) -> None:
    with pytest.raises(ChainError, match="dataframe=True"):
        destination(dataframe=True, **option)  # type: ignore[call-overload]


def test_the_function_can_be_called_as_itself() -> None:
    assert priced("a frame") == "a frame"
    assert message_filter(name="all", dataframe=True)(lambda frame: frame).dataframe
