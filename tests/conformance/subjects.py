"""The stores under test. To add one: a line in SUBJECTS."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode

import pytest

from homing import open_store
from homing.store import Store
from tests.rabbitmq_server import remove_store
from tests.servers import Server
from tests.servicebus.broker import Settings
from tests.servicebus.server import ServiceBusServer


@dataclass(frozen=True)
class Subject:
    """One kind of store, and how to get at a fresh one.

    `address` gives the URL without options, from the test's fixtures. `server` names the fixture of the server it
    needs, which some tests restart. `processes` says whether several processes can share it. `remove` takes a store
    away again, by URL and name, where leaving it would slow the tests after it down.
    """

    name: str
    address: Callable[[pytest.FixtureRequest], str]
    server: str | None = None
    processes: bool = True
    remove: Callable[[str, str], None] = lambda url, name: None
    #: Whether closing takes a second, and the next test need not wait for it.
    closes_slowly: bool = False


def _servicebus(request: pytest.FixtureRequest) -> str:
    server: ServiceBusServer = request.getfixturevalue("servicebus")
    # Locks that run out soon after their holder has died: a test waits for it.
    server.broker.create_missing = Settings(lock_duration=5.0, max_delivery_count=1000)
    return server.url


SUBJECTS = {
    subject.name: subject
    for subject in (
        Subject("memory", lambda request: "memory://", processes=False),
        Subject("sqlite", lambda request: f"sqlite:///{request.getfixturevalue('tmp_path')}/store.db"),
        Subject("postgresql", lambda request: str(request.getfixturevalue("postgresql").url), server="postgresql"),
        Subject("mariadb", lambda request: str(request.getfixturevalue("mariadb").url), server="mariadb"),
        Subject(
            "rabbitmq",
            lambda request: str(request.getfixturevalue("rabbitmq").url),
            server="rabbitmq",
            remove=remove_store,
        ),
        Subject("servicebus", _servicebus, server="servicebus", closes_slowly=True),
    )
}


@dataclass(frozen=True)
class Place:
    """A fresh, empty store of one kind, which any number of consumers may open."""

    subject: Subject
    address: str
    name: str
    options: tuple[tuple[str, Any], ...] = ()

    def with_options(self, **options: Any) -> Place:
        """The same store as somebody else would open it."""
        return replace(self, options=tuple({**dict(self.options), **options}.items()))

    @property
    def url(self) -> str:
        return f"{self.address}?{urlencode({'store': self.name, **dict(self.options)})}"

    def open(self, **options: Any) -> Store:
        return open_store(self.with_options(**options).url)

    def remove(self) -> None:
        self.subject.remove(self.address, self.name)


def server_of(place: Place, request: pytest.FixtureRequest) -> Server | ServiceBusServer:
    """The server this store lives on; skips where there is none."""
    if place.subject.server is None:
        pytest.skip(f"{place.subject.name} has no server")
    server = request.getfixturevalue(place.subject.server)
    assert isinstance(server, (Server, ServiceBusServer))
    return server
