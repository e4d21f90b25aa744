"""Subjects: the stores under test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar, cast
from urllib.parse import urlencode

import pytest

from homing.custom_store import as_store
from homing.store import Store
from homing.stores import open_store

Test = TypeVar("Test", bound=Callable[..., None])


class RestartableServer(Protocol):
    """A server that a store lives on."""

    def restart(self) -> object:
        """Stops it, without a warning to its clients, and starts it with what it has on its disk."""


@dataclass(frozen=True)
class Subject:
    """One kind of store, and how to get at a fresh one.

    `address` gives the URL without options, from the test's fixtures; `store=<name>`, and `ack_wait=<seconds>` for how
    long a lease lasts, are added. A store without a URL is opened by `open(name, **options)` instead, again and again
    for one name: each is one more consumer of the same messages, all of them in one process.

    `server` names the fixture of the server it needs, a `RestartableServer`, which some tests restart. `processes` says
    whether several processes can share it. `remove` takes a store away again, by URL and name, where leaving it would
    slow the tests after it down.
    """

    name: str
    address: Callable[[pytest.FixtureRequest], str] = lambda request: ""
    server: str | None = None
    processes: bool = True
    remove: Callable[[str, str], None] = lambda url, name: None
    #: Whether closing takes a second, and the next test need not wait for it.
    closes_slowly: bool = False
    open: Callable[..., Any] | None = None


@dataclass(frozen=True)
class Place:
    """A fresh, empty store of one kind, which any number of consumers may open."""

    subject: Subject
    address: str
    name: str
    options: tuple[tuple[str, Any], ...] = ()

    def with_options(self, **options: Any) -> Place:
        """The same store as another consumer would open it."""
        return replace(self, options=tuple({**dict(self.options), **options}.items()))

    @property
    def url(self) -> str:
        return f"{self.address}?{urlencode({'store': self.name, **dict(self.options)})}"

    def open(self, **options: Any) -> Store:
        if self.subject.open is not None:
            return as_store(self.subject.open(self.name, **{**dict(self.options), **options}))
        return open_store(self.with_options(**options).url)

    def remove(self) -> None:
        self.subject.remove(self.address, self.name)


def needs(*abilities: str) -> Callable[[Test], Test]:
    """Has a test skipped for stores that lack one of these abilities."""

    def mark(test: Test) -> Test:
        test.needs = abilities  # type: ignore[attr-defined]
        return test

    return mark


def server_of(place: Place, request: pytest.FixtureRequest) -> RestartableServer:
    """The server this store lives on; skips where there is none."""
    if place.subject.server is None:
        pytest.skip(f"{place.subject.name} has no server")
    return cast("RestartableServer", request.getfixturevalue(place.subject.server))
