"""The board on which a listener keeps what it holds."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from homing.listener.delivery import Delivery
from homing.listener.in_flight import Board
from homing.message import Message


def never() -> bool:
    return False


def filled(board: Board, *ids: str) -> list[Delivery]:
    """Deliveries that all wait for their next attempt, which is due."""
    board.next_work(True, never)
    fresh, _ = board.arrived([Message(message_id, None) for message_id in ids], 0.0)
    for delivery in fresh:
        delivery.begin_attempt()
        board.again(delivery, 0.0)
    return fresh


def test_what_is_due_is_handed_out_in_one_batch() -> None:
    board = Board(60, batch_size=10)
    due = filled(board, "a", "b", "c")
    assert board.next_work(False, never) == due


@pytest.mark.parametrize("mark", [{"alone": True}, {"verdict": (True, "processed")}])
def test_what_must_be_alone_shares_no_batch_with_others(mark: dict[str, Any]) -> None:
    board = Board(60, batch_size=10)
    first, single, last = filled(board, "a", "b", "c")
    for name, value in mark.items():
        setattr(single, name, value)
    assert [board.next_work(False, never) for _ in range(3)] == [[first], [single], [last]]


def test_what_is_no_longer_held_is_not_handed_out() -> None:
    board = Board(60, batch_size=10)
    first, second = filled(board, "a", "b")
    board.finished(first)
    assert board.next_work(False, never) == [second]


def test_interval_that_no_lock_can_wait_for_ends_no_thread() -> None:
    board = Board(1e300, batch_size=1)
    filled(board)
    threading.Timer(0.2, board.stop, [0]).start()
    assert board.next_work(True, never) is None


def test_one_thread_polls_at_a_time() -> None:
    board = Board(60, batch_size=1)
    filled(board, "a")
    assert board.next_work(True, never) == []
    assert [delivery.id for delivery in board.next_work(True, never) or ()] == ["a"]
