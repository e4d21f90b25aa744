"""The worked example's chain: what happens to an order. Plain Python, runnable without Airflow and Spark.

Unpaid orders are dropped. Every other order goes to the lake, a folder of JSON lines, and those from Europe also to the
CRM, which is reached over HTTP. An order that makes no sense fails, and ends among the dead letters with its reason.
"""

from __future__ import annotations

import json
import os
import socket
import urllib.request
from pathlib import Path
from typing import TypedDict

from homing import HandlerChain, MessageContext, destination, message_filter, transformer

EUROPE = {"DE", "FR", "PL", "SE"}


class Order(TypedDict):
    number: int
    country: str
    quantity: int
    cents: int
    paid: bool


@message_filter
def paid(order: Order) -> bool:
    return order["paid"]


@transformer
def priced(order: Order) -> dict[str, object]:
    if order["quantity"] < 1:
        raise ValueError(f"order {order['number']} is for {order['quantity']} pieces")
    return {**order, "total_cents": order["quantity"] * order["cents"]}


@message_filter
def european(order: Order) -> bool:
    return order["country"] in EUROPE


@destination
def lake(ctx: MessageContext) -> str:
    """Appends the order to a file of this process on this machine, so that no two writers share one."""
    folder = Path(os.environ.get("ORDERS_LAKE", "lake"))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"orders-{socket.gethostname()}-{os.getpid()}.jsonl"
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"id": ctx.get_id(), **ctx.get_content()}) + "\n")
    return path.name


@destination
def crm(ctx: MessageContext) -> int:
    """Posts the order to the CRM, with its id, by which the CRM could tell a duplicate, and the trace it belongs to."""
    trace = {"traceparent": str(parent)} if (parent := ctx.message.headers.get("traceparent")) else {}
    request = urllib.request.Request(
        os.environ.get("ORDERS_CRM", "http://127.0.0.1:8077/orders"),
        data=json.dumps({"id": ctx.get_id(), **ctx.get_content()}).encode(),
        headers={"Content-Type": "application/json", "Idempotency-Key": ctx.get_id(), **trace},
    )
    with urllib.request.urlopen(request, timeout=10) as response:
        return int(response.status)


chain = HandlerChain("orders", source_flow=[paid, priced], destinations_flow=[lake, ([european], crm)])
