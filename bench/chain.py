"""What a chain costs: `execute` of five trivial handlers and two trivial destinations against calling the functions.

    python bench/chain.py [--rounds 500] [--messages 20] [--json FILE]

Rounds are interleaved and short, so that whatever else the machine does hits all alike and few of them, and medians are
compared. CPU time is that of all threads together. The functions called directly share one dict and do no more than
their work; the difference is everything the chain adds: copies, so that no handler can spoil the content for another,
retries, the parallel destinations, results and counts.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from homing import HandlerChain, MessageContext, destination, message_filter, processor, processor_router, transformer

#: Microseconds a message; what the chain may add for handlers and destinations that are in-process and fast.
LIMIT = 100.0

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


def microseconds(call: Callable[[Any], Any], messages: int) -> tuple[float, float]:
    """Per message: on the clock, and of all processors."""
    started, worked = time.perf_counter(), time.process_time()
    for _ in range(messages):
        call(CONTENT)
    share = 1e6 / messages
    return (time.perf_counter() - started) * share, (time.process_time() - worked) * share


def measure(rounds: int, messages: int) -> dict[str, tuple[float, float]]:
    """Medians over interleaved rounds."""
    source = [paid, numbered, checked, priced, routed]
    calls = {
        "direct": direct,
        "chain": HandlerChain("bench", source_flow=source, destinations_flow=[crm, lake]).execute,
        "chain, one destination": HandlerChain("bench", source_flow=source, destinations_flow=[lake]).execute,
    }
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    for call in calls.values():
        microseconds(call, messages)
    for _ in range(rounds):
        for name, call in calls.items():
            taken[name].append(microseconds(call, messages))
    return {
        name: (statistics.median(wall for wall, _ in pairs), statistics.median(cpu for _, cpu in pairs))
        for name, pairs in taken.items()
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--messages", type=int, default=20, help="in each round")
    parser.add_argument("--json", type=Path, default=None, help="where to write the figures, besides printing them")
    arguments = parser.parse_args()
    medians = measure(arguments.rounds, arguments.messages)
    floor = medians["direct"][0]
    print(f"{'':24}{'µs/message':>12}{'beyond direct':>15}{'ratio':>8}{'CPU µs':>9}")
    for name, (wall, cpu) in medians.items():
        print(f"{name:24}{wall:>12.1f}{wall - floor:>15.1f}{wall / floor:>8.1f}{cpu:>9.1f}")
    added = medians["chain"][0] - floor
    figures = {
        "microseconds": {name: round(wall, 2) for name, (wall, _) in medians.items()},
        "cpu_microseconds": {name: round(cpu, 2) for name, (_, cpu) in medians.items()},
        "added_microseconds": round(added, 2),
        "ratio": round(medians["chain"][0] / floor, 2),
        "limit_microseconds": LIMIT,
        "within_limit": added < LIMIT,
    }
    print(json.dumps(figures))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0 if added < LIMIT else 1


if __name__ == "__main__":
    raise SystemExit(main())
