"""Stores and helpers for the listener's tests: quick intervals, bounded waits."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from homing import ListenerConfig, Message, StoreListener, open_store
from homing.errors import NotInFlightError, StoreUnavailableError
from homing.message import Headers, encode
from homing.store import Store

QUICK = {"polling_interval": 0.02, "retry_interval": 0.02}


class PlainStore(Store):
    """The three verbs and nothing else; remembers what it was told, and can be down for some of them."""

    def __init__(self, name: str = "plain") -> None:
        self.name = name
        self.lock = threading.Lock()
        self.available: deque[Message] = deque()
        self.leased: dict[str, Message] = {}
        self.told: list[tuple[str, bool]] = []
        self.stored = 0
        self.retrievals = 0
        self.down: set[str] = set()

    def store(self, content: Any, *, id: str | None = None, headers: Headers | None = None) -> str:
        self._answer("store")
        encode(content)
        with self.lock:
            self.stored += 1
            message = Message(id or f"m{self.stored}", content, headers=headers or {})
            self.available.append(message)
        return message.id

    def retrieve(self) -> Message | None:
        self.retrievals += 1
        self._answer("retrieve")
        with self.lock:
            if not self.available:
                return None
            message = self.available.popleft()
            self.leased[message.id] = message
            return message

    def acknowledge(self, message: str | Message, success: bool = True) -> None:
        self._answer("acknowledge")
        message_id = message if isinstance(message, str) else message.id
        with self.lock:
            if message_id not in self.leased:
                raise NotInFlightError(f"message {message_id} is not in flight")
            known = self.leased.pop(message_id)
            self.told.append((message_id, success))
            if not success:
                self.available.append(known)

    def close(self) -> None:
        pass

    def _answer(self, verb: str) -> None:
        if verb in self.down:
            raise StoreUnavailableError(f"no connection to {self.name}")


@pytest.fixture
def plain() -> PlainStore:
    return PlainStore()


@pytest.fixture
def plain_dead() -> PlainStore:
    return PlainStore("dead")


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/inbox.db"


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with open_store(f"{url}?store=orders") as opened:
        yield opened


@pytest.fixture
def dead(url: str) -> Iterator[Store]:
    with open_store(f"{url}?store=dead") as opened:
        yield opened


@pytest.fixture(params=["sql", "plain"])
def any_store(request: pytest.FixtureRequest) -> Any:
    """A store with every ability, and one with none."""
    return request.getfixturevalue("store" if request.param == "sql" else "plain")


@pytest.fixture
def until() -> Callable[..., None]:
    """Waits until something is true, and fails when that takes too long."""

    def wait(condition: Callable[[], Any], seconds: float = 20.0) -> None:
        limit, pause = time.monotonic() + seconds, threading.Event()
        while not condition():
            assert time.monotonic() < limit, "what was waited for did not happen"
            pause.wait(0.005)

    return wait


@pytest.fixture
def listen() -> Iterator[Callable[..., StoreListener]]:
    """Starts listeners with quick intervals, and stops them at the end."""
    started: list[StoreListener] = []

    def start(store: Store, service: Any, **options: Any) -> StoreListener:
        listener = StoreListener(store, ListenerConfig(**{**QUICK, **options}))
        listener.attach(service)
        started.append(listener)
        listener.start()
        return listener

    yield start
    for listener in started:
        listener.immediate_stop()
