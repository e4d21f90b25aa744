"""The order system: store, listener, chain, failure store, replay listener and dead-letter store, all at once."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from homing import (
    HandlerChain,
    ListenerConfig,
    MessageContext,
    ReplayConfig,
    StoreListener,
    destination,
    message_filter,
    open_store,
    processor,
    processor_router,
    transformer,
)
from homing.failure import read_record
from homing.message import ACKNOWLEDGED
from homing.store import Store

ORDERS = 30


@dataclass
class Order:
    number: int
    country: str
    paid: bool


def content(number: int) -> dict[str, Any]:
    return {"number": number, "country": "US" if number % 3 == 0 else "DE", "paid": number % 10 != 9}


class Systems:
    """The systems orders go to. The CRM refuses order 7 always, and every order the first time."""

    def __init__(self) -> None:
        self.lake: Counter[int] = Counter()
        self.crm: Counter[int] = Counter()
        self.refused: Counter[int] = Counter()
        self.currencies: dict[int, str] = {}
        self.lock = threading.Lock()

    def to_lake(self, order: dict[str, Any]) -> None:
        with self.lock:
            self.lake[order["number"]] += 1
            self.currencies[order["number"]] = order["currency"]

    def to_crm(self, number: int) -> None:
        with self.lock:
            if number == 7 or not self.refused[number]:
                self.refused[number] += 1
                raise ConnectionError(f"the CRM refuses order {number}")
            self.crm[number] += 1


@pytest.fixture
def systems() -> Systems:
    return Systems()


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[dict[str, Store]]:
    opened = {name: open_store(f"sqlite:///{tmp_path}/orders.db?store={name}") for name in ("inbox", "failed", "dead")}
    yield opened
    for store in opened.values():
        store.close()


@pytest.fixture
def chain(systems: Systems, stores: dict[str, Store]) -> Iterator[HandlerChain]:
    @message_filter
    def paid(order: Order) -> bool:
        return order.paid

    @transformer
    def in_euros(ctx: MessageContext) -> Any:
        return {**ctx.get_content(), "currency": "EUR"}

    @transformer
    def in_dollars(ctx: MessageContext) -> Any:
        return {**ctx.get_content(), "currency": "USD"}

    @processor_router
    def by_country(order: Order) -> Any:
        return in_dollars if order.country == "US" else in_euros

    @processor
    def tagged(ctx: MessageContext) -> None:
        ctx.set_property("tenant", ctx.message.headers["tenant"])

    @message_filter
    def european(order: Order) -> bool:
        return order.country != "US"

    @destination
    def lake(ctx: MessageContext) -> str:
        systems.to_lake(ctx.get_content())
        return str(ctx.get_property("tenant"))

    @destination
    async def crm(order: Order) -> None:
        systems.to_crm(order.number)

    quick = ReplayConfig(dead_letter_store=stores["dead"], polling_interval=0.02, max_retries=2, retry_interval=0.02)
    with HandlerChain(
        "orders",
        source_flow=[paid, by_country, tagged],
        destinations_flow=[lake, ([european], crm)],
        failure_store=stores["failed"],
        replay=quick,
    ) as built:
        yield built


def wait_until(condition: Callable[[], bool]) -> None:
    limit, pause = time.monotonic() + 60, threading.Event()
    while not condition():
        assert time.monotonic() < limit, "the orders did not come through"
        pause.wait(0.02)


def test_every_order_is_delivered_everywhere_or_dropped_or_a_dead_letter(
    systems: Systems, stores: dict[str, Store], chain: HandlerChain
) -> None:
    inbox, failed, dead = stores["inbox"], stores["failed"], stores["dead"]
    for number in range(ORDERS):
        inbox.store(content(number), id=f"order-{number}", headers={"tenant": "eu"})

    with StoreListener(inbox, ListenerConfig(polling_interval=0.02, concurrency=2)) as listener:
        listener.attach(chain)
        listener.start()
        wait_until(lambda: inbox.count()[ACKNOWLEDGED] == ORDERS)
    wait_until(lambda: failed.count()[ACKNOWLEDGED] == sum(failed.count().values()))

    orders = [content(number) for number in range(ORDERS)]
    paid = {order["number"] for order in orders if order["paid"]}
    european = {order["number"] for order in orders if order["paid"] and order["country"] == "DE"}
    assert systems.lake == dict.fromkeys(paid, 1)
    assert systems.crm == dict.fromkeys(european - {7}, 1)
    assert systems.currencies == {n: "USD" if n % 3 == 0 else "EUR" for n in paid}
    assert chain.counts()["dropped"] == ORDERS - len(paid)

    letter = dead.retrieve()
    assert letter is not None
    record = read_record(letter.content)
    assert (record.message.id, record.message.content, record.done) == ("order-7", content(7), {"lake": "eu"})
    assert "the CRM refuses order 7" in letter.headers["homing-dead-letter-description"]
    assert dead.retrieve() is None
    assert systems.refused[7] == 4  # the first pass, then 1 + max_retries replays
