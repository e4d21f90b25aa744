"""Two messages of one id, in a store that does not keep ids apart: each is handled, each is acknowledged for itself."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping
from typing import Any

import pytest

from homing import ListenerConfig, Message, StoreListener
from homing.invocation.batch_result import PartialFailure, read_partial
from homing.store import Store


class Queue(Store):
    """Like a broker: ids mean nothing to it, and what it hands out it knows by a token."""

    name = "queue"

    def __init__(self) -> None:
        self._ready: list[Message] = []
        self._held: dict[str | None, Message] = {}
        self._tokens = itertools.count()
        self._lock = threading.Lock()
        self.acknowledged: list[Any] = []

    def store(
        self, content: Any, *, id: str | None = None, headers: Mapping[str, Any] | None = None, **others: Any
    ) -> str:
        with self._lock:
            self._ready.append(Message(id or "", content))
        return id or ""

    def retrieve(self) -> Message | None:
        with self._lock:
            if not self._ready:
                return None
            message, token = self._ready.pop(0), f"token {next(self._tokens)}"
            self._held[token] = message
            return Message(message.id, message.content, lock_token=token)

    def acknowledge(self, message: str | Message, success: bool = True, **others: Any) -> None:
        assert isinstance(message, Message)
        with self._lock:
            held = self._held.pop(message.lock_token)
            if success:
                self.acknowledged.append(held.content)
            else:
                self._ready.append(held)

    def close(self) -> None:
        pass


@pytest.mark.parametrize("concurrency", [1, 2])
def test_the_second_message_of_an_id_is_handled_and_not_taken_for_the_first(concurrency: int, until: Any) -> None:
    queue, seen = Queue(), []
    first_is_there = threading.Event()
    queue.store("X", id="a")
    queue.store("Y", id="a")

    def service(content: str) -> None:
        seen.append(content)
        if concurrency > 1 and len(seen) == 1:
            first_is_there.wait(0.3)  # long enough for the other worker to come by
        if concurrency == 1 and seen == ["X"]:
            raise OSError("once, so that X waits for its retry while Y arrives")

    config = ListenerConfig(polling_interval=0.01, retry_interval=0.05, concurrency=concurrency)
    with StoreListener(queue, config) as listener:
        listener.attach(service)
        listener.start()
        until(lambda: len(queue.acknowledged) == 2)

    assert sorted(set(seen)) == ["X", "Y"]
    assert sorted(queue.acknowledged) == ["X", "Y"]


def test_a_failure_named_by_an_id_that_two_messages_have_is_the_failure_of_both() -> None:
    answers = read_partial(PartialFailure({"a": "no"}), ["a", "b", "a"])

    assert [answer.error is not None for answer in answers] == [True, False, True]
