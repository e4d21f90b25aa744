from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest

from homing.store import Message, Store
from tests.conformance.subjects import SUBJECTS, Place

Answer = TypeVar("Answer")

#: How long a `hasty` consumer's lease lasts: long enough to acknowledge on a busy machine, short enough to wait for.
LEASE = 2.0


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "place" in metafunc.fixturenames:
        metafunc.parametrize("place", list(SUBJECTS), indirect=True)


@pytest.fixture
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """A fresh store; a test marked `needs(...)` is skipped for stores without these abilities."""
    subject = SUBJECTS[request.param]
    address = subject.address(request)
    found = Place(subject, address, f"t{uuid.uuid4().hex[:12]}").with_options(ack_wait=60)
    needed = {ability for mark in request.node.iter_markers("needs") for ability in mark.args}
    if needed:
        with found.open() as store:
            lacking = needed - store.features
        if lacking:
            pytest.skip(f"{subject.name} lacks {', '.join(sorted(lacking))}")
    yield found
    found.remove()


@pytest.fixture
def open_place(place: Place) -> Iterator[Callable[..., Store]]:
    """Opens one more consumer of the store, closed at the end of the test."""
    opened: list[Store] = []

    def open_one(**options: Any) -> Store:
        opened.append(place.open(**options))
        return opened[-1]

    yield open_one
    for store in opened:
        if place.subject.closes_slowly:
            threading.Thread(target=store.close, daemon=True).start()
        else:
            store.close()


@pytest.fixture
def store(open_place: Callable[..., Store]) -> Store:
    return open_place()


@pytest.fixture
def hasty(open_place: Callable[..., Store]) -> Store:
    """A consumer whose leases run out soon."""
    return open_place(ack_wait=LEASE)


@pytest.fixture
def other(open_place: Callable[..., Store]) -> Store:
    """A second consumer of the same store."""
    return open_place()


def eventually(ask: Callable[[], Answer | None], timeout: float = 20.0) -> Answer:
    """The first answer that is not None (or False), asked for again and again."""
    deadline = time.monotonic() + timeout
    while True:
        answer = ask()
        if answer is not None and answer is not False:
            return answer
        assert time.monotonic() < deadline, f"nothing came within {timeout} s"
        time.sleep(0.02)


def take(store: Store, timeout: float = 20.0) -> Message:
    """The next message, waited for: some stores need a moment to hand out what was stored."""
    return eventually(store.retrieve, timeout)


def drain(store: Store, count: int) -> list[Message]:
    """That many messages, each acknowledged before the next is asked for."""
    messages = []
    for _ in range(count):
        messages.append(take(store))
        store.acknowledge(messages[-1])
    return messages
