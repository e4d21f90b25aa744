"""One message that does harm takes no other message of its batch with it."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pydantic
import pytest

import homing
from homing import Message, open_store
from homing.listener.in_flight import InFlight
from homing.message import ACKNOWLEDGED, DEAD
from homing.store import Store

LEASE = 1.0


@pytest.fixture
def fragile(url: str) -> Iterator[Store]:
    """Keeps aside what has crashed its consumer three times."""
    with open_store(f"{url}?store=orders&max_deliveries=3") as opened:
        yield opened


def settled(store: Any) -> tuple[int, int]:
    count = store.count()
    return count[ACKNOWLEDGED], count[DEAD]


def test_message_that_hangs_its_batch_dies_alone(fragile: Any, listen: Any, until: Any) -> None:
    forever = threading.Event()

    class Service:
        def on_messages(self, contents: list[str]) -> None:
            if "bad" in contents:
                forever.wait(60)

    fragile.store_many(["good", "bad", "fine", "nice"])
    # Polled so seldom that all have come back by then.
    listen(fragile, Service(), lease=LEASE, max_handling_time=LEASE, polling_interval=2 * LEASE)
    try:
        until(lambda: settled(fragile) == (3, 1), 60)
    finally:
        forever.set()
    assert [message.content for message in fragile.browse(state=DEAD)] == ["bad"]


CRASHING = """
import os, sys
from homing import ListenerConfig, StoreListener, open_store

class Service:
    def on_messages(self, contents):
        if "bad" in contents:
            os._exit(9)

listener = StoreListener(open_store(sys.argv[1]), ListenerConfig(polling_interval=0.05, lease=float(sys.argv[2])))
listener.attach(Service())
listener.start()
listener.join(20)
"""


def test_message_that_kills_the_process_is_dead_in_the_end_and_its_neighbours_are_not(
    fragile: Any, url: str, until: Any
) -> None:
    fragile.store_many(["good", "bad", "fine", "nice"])
    environment = {"PYTHONPATH": str(Path(homing.__path__[0]).parent)}
    place = f"{url}?store=orders&max_deliveries=3"
    for _ in range(12):
        if settled(fragile) == (3, 1):
            break
        with subprocess.Popen([sys.executable, "-c", CRASHING, place, str(LEASE)], env=environment) as process:
            until(lambda process=process: process.poll() is not None or settled(fragile) == (3, 1), 60)
            process.kill()
    assert settled(fragile) == (3, 1)
    assert [message.content for message in fragile.browse(state=DEAD)] == ["bad"]


class Order(pydantic.BaseModel):
    number: int

    @pydantic.field_validator("number")
    @classmethod
    def check(cls, number: int) -> int:
        if number == 2:
            raise SystemExit("a validator that ends the program")
        return number


def test_base_exception_in_binding_fails_its_message_alone(
    plain: Any, plain_dead: Any, listen: Any, until: Any
) -> None:
    seen: list[int] = []

    class Service:
        def on_messages(self, orders: list[Order]) -> None:
            seen.extend(order.number for order in orders)

    for number in (1, 2, 3):
        plain.store({"number": number})
    listen(plain, Service(), max_retries=0, dead_letter_store=plain_dead)
    until(lambda: plain_dead.available)
    until(lambda: sorted(seen) == [1, 3])
    assert plain_dead.available[0].headers["homing-dead-letter-reason"] == "SystemExit"
    until(lambda: len(plain.told) == 3)


def test_content_nested_too_deeply_to_be_copied_fails_alone(
    plain: Any, plain_dead: Any, listen: Any, until: Any
) -> None:
    seen: list[Any] = []

    class Service:
        def on_messages(self, contents: list[Any]) -> None:
            seen.extend(content for content in contents if content in (1, 3))

    deep: Any = "deep"
    for _ in range(5000):
        deep = [deep]
    listen(plain, Service(), max_retries=1, dead_letter_store=plain_dead)
    with plain.lock:
        plain.available.extend([Message("a", 1), Message("deep", deep), Message("c", 3)])
        # No store of ours would take it, nor would this one.
        plain_dead.store = lambda content, **others: plain_dead.told.append(
            (others["headers"]["homing-message-id"], True)
        )
    until(lambda: sorted(seen) == [1, 3])
    until(lambda: plain_dead.told == [("deep", True)])
    until(lambda: sorted(plain.told) == [("a", True), ("c", True), ("deep", True)])


def never() -> bool:
    return False


def arrived(in_flight: InFlight, **delivered: int) -> tuple[list[str], list[str]]:
    """Messages that were delivered so often: those to be handled now, and those to be given back."""
    assert in_flight.next_work(True, never) == []
    now, back = in_flight.arrived([Message(name, None, delivery_count=count) for name, count in delivered.items()])
    for delivery in back:
        in_flight.finished(delivery)
    return [delivery.id for delivery in now], [delivery.id for delivery in back]


def test_what_came_back_by_itself_is_handled_alone_and_its_like_wait_in_the_store() -> None:
    in_flight = InFlight(60, batch_size=10)
    assert arrived(in_flight, a=1, b=2, c=1, d=3) == (["b"], ["d"])
    assert in_flight.take_limit == 1
    assert [delivery.id for delivery in in_flight.next_work(False, never) or ()] == ["a", "c"]


def test_batches_are_taken_again_once_a_message_comes_that_did_no_harm() -> None:
    in_flight = InFlight(0.001, batch_size=10)
    assert arrived(in_flight, a=2, b=2) == (["a"], ["b"])
    arrived(in_flight)
    assert in_flight.take_limit == 1
    assert arrived(in_flight, c=1) == (["c"], [])
    assert in_flight.take_limit == 10


def test_what_the_listener_gave_back_itself_may_share_a_batch() -> None:
    in_flight = InFlight(60, batch_size=10)
    in_flight.remember("a", 0.0)
    assert arrived(in_flight, a=2, b=1) == (["a", "b"], [])


def test_what_hung_here_is_alone_even_if_its_store_counts_no_deliveries() -> None:
    in_flight = InFlight(60, batch_size=10)
    in_flight.remember("a", 0.0, isolated=True)
    assert arrived(in_flight, a=0, b=0) == (["a"], [])
