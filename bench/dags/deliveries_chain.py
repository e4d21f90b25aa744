"""The chain of the benchmark's pipeline: one transformer, two destinations."""

from __future__ import annotations

from typing import Any

from arrivals import arrive, price

from homing import HandlerChain, MessageContext, destination, transformer


@transformer
def priced(ctx: MessageContext) -> dict[str, Any]:
    return price(ctx.get_content())


@destination
def crm(ctx: MessageContext) -> None:
    arrive("crm", ctx.get_content())


@destination
def lake(ctx: MessageContext) -> None:
    arrive("lake", ctx.get_content())


chain = HandlerChain("deliveries", source_flow=[priced], destinations_flow=[crm, lake])
