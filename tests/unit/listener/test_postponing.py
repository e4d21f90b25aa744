"""Stores that keep what waits for its next attempt themselves, as brokers do."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from homing import Message
from homing.errors import LeaseLostError, StoreUnavailableError
from homing.store import ATTEMPTS
from tests.unit.listener.conftest import PlainStore


class Postponing(PlainStore):
    """Hands out again, once it is due, what was put back; or raises what it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.trouble: Exception | None = None
        self.waiting: list[tuple[float, Message]] = []
        self.postponed: list[int] = []

    def postpone(self, message: Message, seconds: float, *, attempts: int) -> bool:
        with self.lock:
            self.postponed.append(attempts)
            if self.trouble is not None:
                raise self.trouble
            again = replace(self.leased.pop(message.id), headers={ATTEMPTS: attempts})
            self.waiting.append((time.monotonic() + seconds, again))
        return True

    def retrieve(self) -> Message | None:
        with self.lock:
            due = [item for item in self.waiting if item[0] <= time.monotonic()]
            for item in due:
                self.waiting.remove(item)
                self.available.append(item[1])
        return super().retrieve()


@pytest.fixture
def postponing() -> Postponing:
    return Postponing()


def test_what_waits_is_in_the_store_and_tried_as_often_as_anything_else(
    postponing: Postponing, listen: Any, until: Any
) -> None:
    held: list[int] = []

    def broken(content: object) -> None:
        held.append(len(postponing.leased))
        raise ConnectionError

    for name in "abc":
        postponing.store(name)
    listener = listen(postponing, broken, max_retries=2, ack_with_failure_after_max_retries=False)
    until(lambda: listener.metrics().dropped == 3)

    assert (len(held), sorted(postponing.postponed)) == (9, [1, 1, 1, 2, 2, 2])
    assert set(held) == {1}


def test_a_retry_does_not_wait_for_the_polling_interval(postponing: Postponing, listen: Any, until: Any) -> None:
    seen: list[object] = []

    def broken_once(content: object) -> None:
        seen.append(content)
        if len(seen) <= 3:
            raise ConnectionError

    for name in "abc":
        postponing.store(name)
    listener = listen(postponing, broken_once, polling_interval=600, retry_interval=0.05)
    until(lambda: listener.metrics().processed == 3)
    assert sorted(map(str, seen)) == ["a", "a", "b", "b", "c", "c"]


def test_what_the_store_does_not_take_back_waits_here(postponing: Postponing, listen: Any, until: Any) -> None:
    seen: list[object] = []

    def broken_once(content: object) -> None:
        seen.append(content)
        if len(seen) == 1:
            raise ConnectionError

    postponing.trouble = StoreUnavailableError("away")
    postponing.store("a")
    listener = listen(postponing, broken_once)
    until(lambda: listener.metrics().processed == 1)
    assert (seen, postponing.postponed, postponing.leased) == (["a", "a"], [1], {})


def test_what_was_lost_before_it_could_be_put_back_is_let_go_of(
    postponing: Postponing, listen: Any, until: Any
) -> None:
    def broken(content: object) -> None:
        raise ConnectionError

    postponing.trouble = LeaseLostError("its connection is gone")
    postponing.store("a", id="m1")
    listener = listen(postponing, broken, max_retries=1)
    until(lambda: postponing.postponed == [1] and listener.metrics().in_flight == 0)

    # It comes from the store again, and with the attempt it had.
    with postponing.lock:
        postponing.available.append(postponing.leased.pop("m1"))
    until(lambda: ("m1", False) in postponing.told)
    assert postponing.postponed == [1]
