"""Messages that wait for their next attempt, however many, keep no other from being handled."""

from __future__ import annotations

import time
from collections import Counter
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from homing import Message, open_store
from homing.message import ACKNOWLEDGED, SCHEDULED


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """The listener holds two itself, with the one it is at."""
    monkeypatch.setattr("homing.listener.in_flight.MAX_HELD", 2)


class Failing:
    def __init__(self) -> None:
        self.calls: Counter[Any] = Counter()

    def on_message(self, content: Any) -> None:
        self.calls[content] += 1
        if content != "good":
            raise OSError


def test_good_message_is_handled_whatever_number_waits_for_a_retry(any_store: Any, listen: Any, until: Any) -> None:
    for number in range(10):
        any_store.store(number)
    service = Failing()
    listener = listen(any_store, service, max_retries=3, retry_interval=600)
    until(lambda: len(service.calls) == 10)
    any_store.store("good")
    until(lambda: listener.metrics().processed == 1)
    assert service.calls == {**dict.fromkeys(range(10), 1), "good": 1}


def test_store_that_can_reschedule_holds_what_the_listener_does_not(store: Any, listen: Any, until: Any) -> None:
    store.store_many(range(10))
    listener = listen(store, Failing(), max_retries=3, retry_interval=600)
    until(lambda: store.count()[SCHEDULED] == 9)
    assert listener.metrics().in_flight == 1
    assert listener.metrics().retried == 10
    assert listener.metrics().released == 0


def test_attempts_are_counted_on_when_a_message_waited_in_the_store(
    store: Any, dead: Any, listen: Any, until: Any
) -> None:
    store.store_many(range(10))
    service = Failing()
    listener = listen(store, service, max_retries=2, dead_letter_store=dead)
    until(lambda: listener.metrics().dead_lettered == 10)
    assert service.calls == dict.fromkeys(range(10), 3)
    assert {message.headers["homing-dead-letter-attempts"] for message in dead.browse()} == {3}


def test_retry_interval_passes_when_a_message_waited_in_the_store(store: Any, listen: Any, until: Any) -> None:
    moments: dict[Any, list[float]] = {number: [] for number in range(6)}

    def on_message(number: int) -> None:
        moments[number].append(time.monotonic())
        if len(moments[number]) == 1:
            raise OSError

    store.store_many(range(6))
    listener = listen(store, on_message, retry_interval=0.5)
    until(lambda: listener.metrics().processed == 6)
    assert min(second - first for first, second in moments.values()) >= 0.5


def test_message_that_could_only_be_released_waits_with_the_listener(
    store: Any, listen: Any, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reschedule(*args: Any, **kwargs: Any) -> int:
        raise RuntimeError("out of order")

    monkeypatch.setattr(store, "reschedule", reschedule)
    store.store_many(range(6))
    service = Failing()
    listen(store, service, retry_interval=600, max_retries=3)
    until(lambda: len(service.calls) == 6)
    store.store("good")
    until(lambda: store.count()[ACKNOWLEDGED] == 1)
    assert set(service.calls.values()) == {1}


def test_message_of_a_session_keeps_its_place(store: Any, listen: Any, until: Any) -> None:
    order: list[str] = []

    def on_message(content: str) -> None:
        order.append(content)
        if order.count(content) == 1 and content.endswith("first"):
            raise OSError

    for session in "abcd":
        for place in ("first", "second"):
            store.store(Message(f"{session}{place}", f"{session} {place}", session_id=session))
    listener = listen(store, on_message, retry_interval=0.1)
    until(lambda: listener.metrics().processed == 8)
    for session in "abcd":
        assert [content for content in order if content[0] == session] == [
            f"{session} first", f"{session} first", f"{session} second",
        ]  # fmt: skip


@pytest.mark.parametrize("kind", ["memory", "sql"])
def test_scheduled_message_is_handled_when_it_is_due_and_not_at_the_next_poll(
    kind: str, store: Any, listen: Any, until: Any
) -> None:
    with store if kind == "sql" else open_store("memory://due") as source:
        due = datetime.now(timezone.utc) + timedelta(seconds=1)
        source.store("later", scheduled_at=due)
        moments: list[datetime] = []
        listen(source, lambda _content: moments.append(datetime.now(timezone.utc)), polling_interval=30)
        until(lambda: moments)
        assert due <= moments[0] < due + timedelta(seconds=5)


def test_store_that_says_something_is_due_and_hands_out_nothing_is_polled_no_more_often(
    store: Any, listen: Any, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    polls: list[float] = []

    def claim(*_: Any, **__: Any) -> list[Message]:
        polls.append(time.monotonic())
        return []

    monkeypatch.setattr(store, "claim", claim)
    monkeypatch.setattr(store, "due_in", lambda: 0.0)
    listen(store, Failing(), polling_interval=0.5)
    until(lambda: len(polls) == 2)
    assert polls[1] - polls[0] >= 0.5


def test_memory_store_holds_what_waits_too(listen: Any, until: Any) -> None:
    with open_store("memory://waiting") as store:
        store.store_many(range(5))
        listen(store, Failing(), retry_interval=600)
        until(lambda: store.count()[SCHEDULED] == 4)
