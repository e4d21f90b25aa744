"""What the tests of the suite ask for: a fresh store of each subject, and consumers of it."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from homing.store import Store
from homing.testing.conformance.subject import Place, Subject
from homing.testing.conformance.waiting import LEASE


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs each test for every one of the SUBJECTS of its module."""
    if "place" in metafunc.fixturenames:
        subjects: list[Subject] = metafunc.module.SUBJECTS
        metafunc.parametrize("place", subjects, ids=[subject.name for subject in subjects], indirect=True)


@pytest.fixture
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """A fresh store; a test that `needs` abilities is skipped for stores without these abilities."""
    subject: Subject = request.param
    found = Place(subject, subject.address(request), f"t{uuid.uuid4().hex[:12]}").with_options(ack_wait=60)
    needed = set(getattr(request.function, "needs", ()))
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
