"""What a chain accepts when it is built, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest

from homing.errors import ChainError
from homing.pipeline import (
    HandlerChain,
    MessageContext,
    destination,
    destination_router,
    message_filter,
    processor,
    transformer,
)


@message_filter
def paid(ctx: MessageContext) -> bool:
    return True


@transformer
def normalise(ctx: MessageContext) -> Any:
    return ctx.get_content()


@destination
def crm(ctx: MessageContext) -> Any:
    return "crm"


@destination
def lake(ctx: MessageContext) -> Any:
    return "lake"


@destination_router
def route(ctx: MessageContext) -> Any:
    return crm


def undecorated(ctx: MessageContext) -> Any:
    return True


def names(destinations_flow: Any) -> list[str]:
    return [flow.name for flow in HandlerChain("orders", destinations_flow=destinations_flow).flows]


def test_single_handler_stands_for_a_list_of_one() -> None:
    chain = HandlerChain("orders", source_flow=paid, destinations_flow=crm)
    assert chain.source.processors == (paid,)
    assert [flow.name for flow in chain.flows] == ["crm"]


@pytest.mark.parametrize("pair", [([paid, normalise], crm), ((paid, normalise), crm)])
def test_pair_of_processors_and_destination_is_one_flow(pair: Any) -> None:
    for written in (pair, [pair]):
        [flow] = HandlerChain("orders", destinations_flow=written).flows
        assert (flow.processors, flow.destination) == ((paid, normalise), crm)


def test_single_processor_before_a_destination_stands_for_a_list_of_one() -> None:
    [flow] = HandlerChain("orders", destinations_flow=(paid, crm)).flows
    assert (flow.processors, flow.destination) == ((paid,), crm)


@pytest.mark.parametrize("written", [[crm, lake], (crm, lake), [([paid], crm), lake], (([paid], crm), lake)])
def test_flows_keep_their_order(written: Any) -> None:
    assert names(written) == ["crm", "lake"]


def test_flow_of_a_router_has_the_name_of_the_router() -> None:
    assert names(route) == ["route"]
    assert names([route, lake]) == ["route", "lake"]


@pytest.mark.parametrize("nothing", [[], (), None])
def test_chain_needs_a_destination(nothing: Any) -> None:
    with pytest.raises(ChainError, match="at least one destination"):
        HandlerChain("orders", source_flow=paid, destinations_flow=nothing)


@pytest.mark.parametrize(
    "flows",
    [
        {"source_flow": undecorated, "destinations_flow": crm},
        {"source_flow": [paid, undecorated], "destinations_flow": crm},
        {"destinations_flow": [undecorated]},
        {"destinations_flow": [([undecorated], crm)]},
        {"destinations_flow": [([paid], undecorated)]},
    ],
)
def test_function_without_decorator_is_refused_by_name(flows: Any) -> None:
    with pytest.raises(ChainError, match="'undecorated', which has no decorator"):
        HandlerChain("orders", **flows)


@pytest.mark.parametrize(
    ("flows", "culprit"),
    [
        ({"source_flow": crm, "destinations_flow": lake}, "the destination 'crm'"),
        ({"source_flow": route, "destinations_flow": lake}, "the destination router 'route'"),
        ({"destinations_flow": [paid]}, "the filter 'paid'"),
        ({"destinations_flow": [([crm], lake)]}, "the destination 'crm'"),
        ({"destinations_flow": [([paid], route)]}, "the destination router 'route'"),
        ({"source_flow": "paid", "destinations_flow": lake}, "'paid'"),
        ({"destinations_flow": [(crm, lake, crm)]}, "destination flow must be"),
    ],
)
def test_handler_in_a_place_it_cannot_have_is_refused(flows: Any, culprit: str) -> None:
    with pytest.raises(ChainError, match=culprit):
        HandlerChain("orders", **flows)


@pytest.mark.parametrize("place", ["source", "own", "across"])
def test_two_handlers_of_one_name_are_refused(place: str) -> None:
    @processor(name="paid")
    def other(ctx: MessageContext) -> None: ...

    flows: dict[str, Any] = {
        "source": {"source_flow": [paid, other], "destinations_flow": crm},
        "own": {"destinations_flow": [([paid], crm), ([other], lake)]},
        "across": {"source_flow": paid, "destinations_flow": [([other], crm)]},
    }
    with pytest.raises(ChainError, match="two handlers named 'paid'"):
        HandlerChain("orders", **flows[place])


def test_processor_and_destination_of_one_name_are_refused() -> None:
    @destination(name="paid")
    def other(ctx: MessageContext) -> None: ...

    with pytest.raises(ChainError, match="'paid', a filter and a destination"):
        HandlerChain("orders", source_flow=paid, destinations_flow=other)


def test_one_processor_may_serve_several_flows() -> None:
    assert names([([paid], crm), ([paid], lake)]) == ["crm", "lake"]


def test_one_destination_cannot_have_two_flows() -> None:
    with pytest.raises(ChainError, match="delivers to 'crm' twice"):
        HandlerChain("orders", destinations_flow=[crm, ([paid], crm)])


@pytest.mark.parametrize("name", ["", " ", None, 7])
def test_chain_needs_a_name(name: Any) -> None:
    with pytest.raises(ChainError, match="needs a name"):
        HandlerChain(name, destinations_flow=crm)


def test_type_that_is_unknown_at_run_time_is_refused_when_the_chain_is_built() -> None:
    @transformer
    def typed(order: Unknown) -> Any:  # type: ignore[name-defined]  # noqa: F821
        return order

    with pytest.raises(ChainError, match="'typed' has an annotation that cannot be resolved"):
        HandlerChain("orders", source_flow=typed, destinations_flow=crm)
