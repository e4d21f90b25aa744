"""Chain: `execute` of five trivial handlers and two trivial destinations, beside calling the functions.

The functions called directly share one dict and do no more than their work; the difference is everything the chain
adds: copies, so that no handler can spoil the content for another, retries, the parallel destinations, results, counts.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from typing import Any

from bench.contestants.contestant import timed
from bench.figures import Row
from bench.rounds import Case, Comparison, rows, take_turns
from bench.scale import Scale
from bench.services import Services
from homing import HandlerChain, MessageContext, destination, message_filter, processor, processor_router, transformer

#: Seconds a message that the chain may add for handlers and destinations that are in-process and fast.
LIMIT = 100e-6
#: A round is the median of so many passes over so few messages: whatever else the machine does hits few of them.
PASSES, MESSAGES = 50, 20

CONTENT = {"number": 7, "country": "DE", "paid": True, "lines": [{"sku": "a-1", "quantity": 2, "cents": 995}]}


@message_filter
def paid(ctx: MessageContext) -> bool:
    return bool(ctx.get_content()["paid"])


@transformer
def numbered(ctx: MessageContext) -> dict[str, Any]:
    order: dict[str, Any] = ctx.get_content()
    order["number"] += 1
    return order


@processor
def checked(ctx: MessageContext) -> None:
    if ctx.get_content()["number"] < 0:
        raise ValueError


@transformer
def priced(ctx: MessageContext) -> dict[str, Any]:
    order: dict[str, Any] = ctx.get_content()
    order["total"] = sum(line["quantity"] * line["cents"] for line in order["lines"])
    return order


@processor_router
def routed(ctx: MessageContext) -> Any:
    return None if ctx.get_content()["country"] == "DE" else checked


@destination
def crm(ctx: MessageContext) -> int:
    return int(ctx.get_content()["number"])


@destination
def lake(ctx: MessageContext) -> int:
    return int(ctx.get_content()["total"])


class Plain:
    """What the functions need of a context, and nothing else."""

    __slots__ = ("content",)

    def __init__(self, content: Any) -> None:
        self.content = content

    def get_content(self) -> Any:
        return self.content


def direct(content: dict[str, Any]) -> dict[str, int]:
    """The same work without a chain."""
    ctx: Any = Plain(dict(content))
    if not paid.function(ctx):
        return {}
    ctx.content = numbered.function(ctx)
    checked.function(ctx)
    ctx.content = priced.function(ctx)
    routed.function(ctx)
    return {"crm": crm.function(ctx), "lake": lake.function(ctx)}


def chain(scale: Scale, _services: Services) -> Iterator[Row]:
    source = [paid, numbered, checked, priced, routed]
    plain = _case("the functions alone", direct)
    two = _case("two destinations", HandlerChain("bench", source_flow=source, destinations_flow=[crm, lake]).execute)
    one = _case("one destination", HandlerChain("bench", source_flow=source, destinations_flow=[lake]).execute)
    take_turns([plain, two, one], scale.rounds)
    floor = statistics.median(plain.seconds)
    bar = (floor + LIMIT) / floor
    comparisons = [Comparison(f"execute, {case.name}", case, plain.name, plain, bar) for case in (two, one)]
    yield from rows("chain", comparisons)


def _case(name: str, call: Callable[[Any], Any]) -> Case:
    def one_pass() -> None:
        for _ in range(MESSAGES):
            call(CONTENT)

    return Case(name, lambda: statistics.median(timed(one_pass) for _ in range(PASSES)) / MESSAGES)
