"""What a listener holds, and what of it is due."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from homing.listener.delivery import Delivery
from homing.listener.in_flight import InFlight
from homing.message import Message


def never() -> bool:
    return False


def filled(in_flight: InFlight, *ids: str) -> list[Delivery]:
    """Deliveries that all wait for their next attempt, which is due."""
    in_flight.next_work(True, never)
    fresh, _ = in_flight.arrived([Message(message_id, None) for message_id in ids])
    for delivery in fresh:
        delivery.begin_attempt()
        in_flight.again(delivery, 0.0)
    return fresh


def test_what_is_due_is_handed_out_in_one_batch() -> None:
    in_flight = InFlight(60, batch_size=10)
    due = filled(in_flight, "a", "b", "c")
    assert in_flight.next_work(False, never) == due


@pytest.mark.parametrize("mark", [{"isolated": True}, {"verdict": (True, "processed")}])
def test_what_must_be_alone_shares_no_batch_with_others(mark: dict[str, Any]) -> None:
    in_flight = InFlight(60, batch_size=10)
    first, single, last = filled(in_flight, "a", "b", "c")
    for name, value in mark.items():
        setattr(single, name, value)
    assert [in_flight.next_work(False, never) for _ in range(3)] == [[first], [single], [last]]


def test_what_is_no_longer_held_is_not_handed_out() -> None:
    in_flight = InFlight(60, batch_size=10)
    first, second = filled(in_flight, "a", "b")
    in_flight.finished(first)
    assert in_flight.next_work(False, never) == [second]


def test_interval_that_no_lock_can_wait_for_ends_no_thread() -> None:
    in_flight = InFlight(1e300, batch_size=1)
    filled(in_flight)
    threading.Timer(0.2, in_flight.stop, [0]).start()
    assert in_flight.next_work(True, never) is None


def test_one_thread_polls_at_a_time() -> None:
    in_flight = InFlight(60, batch_size=1)
    filled(in_flight, "a")
    assert in_flight.next_work(True, never) == []
    assert [delivery.id for delivery in in_flight.next_work(True, never) or ()] == ["a"]
