"""Failure stores for the pipeline's tests: one that keeps a list, one that is down."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from homing.errors import StoreUnavailableError
from homing.message import Headers, Message, encode
from homing.store import Store


class ListStore(Store):
    """Keeps messages in a list, as strictly as a real store: only what can be encoded is taken."""

    def __init__(self) -> None:
        self.name = "failures"
        self.messages: list[Message] = []

    def store(self, content: Any, *, id: str | None = None, headers: Headers | None = None) -> str:
        encode(content)
        message = Message(id or f"entry-{len(self.messages) + 1}", content, headers=headers or {})
        self.messages.append(message)
        return message.id

    def retrieve(self) -> Message | None:
        return self.messages[0] if self.messages else None

    def acknowledge(self, message: str | Message, success: bool = True) -> None:
        if success:
            self.messages.pop(0)

    def close(self) -> None:
        pass


class DownStore(ListStore):
    """Takes nothing."""

    def store(self, content: Any, *, id: str | None = None, headers: Headers | None = None) -> str:
        raise StoreUnavailableError("no connection")


@pytest.fixture
def failure_store() -> ListStore:
    return ListStore()


@pytest.fixture
def store_that_is_down() -> DownStore:
    return DownStore()


@pytest.fixture
def until() -> Callable[..., None]:
    """Waits until something is true, and fails when that takes too long."""

    def wait(condition: Callable[[], Any], seconds: float = 20.0) -> None:
        limit, pause = time.monotonic() + seconds, threading.Event()
        while not condition():
            assert time.monotonic() < limit, "what was waited for did not happen"
            pause.wait(0.005)

    return wait
