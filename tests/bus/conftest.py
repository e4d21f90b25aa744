"""One suite, two buses: the embedded one, and the service's own SDK against a server of ours."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from homing.bus import Administrator, Message, MessageReceiver, MessageSender, RetryOptions

BUSES = ["embedded", "service"]
_CLOSING = ThreadPoolExecutor(max_workers=8)
AT_ONCE = RetryOptions(max_retries=0, delay=0.1)


class Bus:
    """One bus: its connection, an administrator, and whatever a test opens on it."""

    def __init__(self, connection: str) -> None:
        self.connection = connection
        self.admin = Administrator(connection)
        self._opened: list[Any] = []

    def queue(self, **properties: Any) -> str:
        """The name of a fresh queue."""
        name = f"q-{uuid.uuid4().hex[:12]}"
        self.admin.create_queue(name, **properties)
        return name

    def topic(self, *subscriptions: str, **properties: Any) -> str:
        """The name of a fresh topic with these subscriptions."""
        name = f"t-{uuid.uuid4().hex[:12]}"
        self.admin.create_topic(name, **properties)
        for subscription in subscriptions:
            self.admin.create_subscription(name, subscription)
        return name

    def sender(self, **options: Any) -> MessageSender:
        sender = MessageSender(self.connection, **{"retry": AT_ONCE, **options})
        self._opened.append(sender)
        return sender

    def receiver(self, **options: Any) -> MessageReceiver:
        receiver = MessageReceiver(self.connection, **{"retry": AT_ONCE, **options})
        self._opened.append(receiver)
        return receiver

    def close(self) -> None:
        # The SDK takes half a second to close each: the next test does not wait for it.
        for opened in (*self._opened, self.admin):
            _CLOSING.submit(opened.close)


@pytest.fixture(params=BUSES)
def bus(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bus]:
    if request.param == "embedded":
        opened = Bus(f"sqlite:///{tmp_path}/bus.db")
    else:
        server = request.getfixturevalue("servicebus")
        server.broker.create_missing = None  # as others may have had it
        opened = Bus(server.connection_string)
    yield opened
    opened.close()


@pytest.fixture
def got() -> Callable[..., Message]:
    return get


def get(receiver: MessageReceiver, **options: Any) -> Message:
    """The next message, which must come."""
    message = receiver.receive(**{"server_wait_time": 20, **options})
    assert message is not None, "nothing came"
    return message


def nothing(receiver: MessageReceiver, **options: Any) -> bool:
    return receiver.receive(server_wait_time=0.3, **options) is None
