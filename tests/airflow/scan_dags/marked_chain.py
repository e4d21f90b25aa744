"""A chain whose handlers quote what they are given in everything that they raise, return and keep.

Of the connections that they were given they leave digests.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import psycopg
from airflow.sdk import BaseHook

from homing import Drop, HandlerChain, MessageContext, destination, open_store, transformer


@dataclass
class Order:
    card: str
    number: int
    what: str


class QuotingError(Exception):
    """Says what the message says."""


@transformer
def checked(ctx: MessageContext) -> Any:
    order = ctx.get_content()
    ctx.set_property("card", order["card"])
    if order["what"] == "drop":
        raise Drop(f"the card {order['card']} is dropped")
    if order["what"] == "fail early":
        raise QuotingError(f"the card {order['card']} is refused", ctx.get_id())
    return order


def leave(name: str, *secrets: str | None) -> None:
    with Path(os.environ["SCAN_LEFT"], name).open("a") as file:
        file.write(" ".join(sha256(str(secret).encode()).hexdigest() for secret in secrets) + "\n")


@destination(max_retries=1, retry_interval=0.01, connections=["marked_api"])
def crm(order: Order, ctx: MessageContext) -> str:
    api = ctx.connection("marked_api")
    leave("crm", api.password, api.extra["token"], BaseHook.get_connection("marked_api").password)
    print(f"{api} logs in with {api.password}")  # noqa: T201 - which Airflow hides, as in every log of a task
    if order.what == "misfit login":
        raise QuotingError(f"no login with {api.password} and {api.extra['token']}")
    if order.what == "fail late":
        try:
            {}[order.card]
        except KeyError as error:
            raise QuotingError(f"the card {order.card} is unknown") from error
    return f"the card {order.card} is there"


@destination
def partner(order: dict[str, Any], ctx: MessageContext) -> str:
    """Its table has a column of its own, on which somebody put a constraint."""
    with open_store(os.environ["SCAN_PARTNER"]) as store:
        return store.store(order, headers={"card": order["card"]})


@destination
def warehouse(order: dict[str, Any]) -> None:
    """Speaks to a database by itself: the driver's errors have the values in their DETAIL."""
    with psycopg.connect(os.environ["SCAN_WAREHOUSE"]) as connection:
        connection.execute("insert into warehouse (card) values (%s)", (order["card"],))
        if order["what"] == "twice":
            connection.execute("insert into warehouse (card) values (%s)", (order["card"],))


@destination(connections=["late_api"])
def partner_late(ctx: MessageContext) -> None:
    leave("late", ctx.connection("late_api").password)


late = HandlerChain("late", destinations_flow=partner_late)
chain = HandlerChain("marked", source_flow=[checked], destinations_flow=[crm, partner, warehouse])
