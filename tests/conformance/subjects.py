"""The stores under test. To add one: a line in SUBJECTS."""

from __future__ import annotations

import pytest

from homing.testing.conformance.subject import Subject
from tests.rabbitmq_server import remove_store
from tests.servicebus.broker import Settings
from tests.servicebus.server import ServiceBusServer


def _servicebus(request: pytest.FixtureRequest) -> str:
    server: ServiceBusServer = request.getfixturevalue("servicebus")
    # Locks that run out soon after their holder has died: a test waits for it.
    server.broker.create_missing = Settings(lock_duration=5.0, max_delivery_count=1000)
    return server.url


SUBJECTS = (
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
