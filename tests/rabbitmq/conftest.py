from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pika
import pytest

from homing import open_store
from homing.stores.rabbitmq.store import RabbitStore
from tests.rabbitmq_server import RabbitMQ, remove_store


@pytest.fixture
def name() -> str:
    """The name of a fresh store."""
    return f"t{uuid.uuid4().hex[:12]}"


@pytest.fixture
def url(rabbitmq: RabbitMQ, name: str) -> str:
    return f"{rabbitmq.url}?store={name}"


@pytest.fixture
def open_one(rabbitmq: RabbitMQ, name: str, url: str) -> Iterator[Callable[..., RabbitStore]]:
    """Opens one more consumer of the store, closed at the end of the test."""
    opened: list[RabbitStore] = []

    def open_it(*, store: str = name, **options: Any) -> RabbitStore:
        place = url.replace(f"?store={name}", f"?store={store}")
        opened_one = open_store(place + "".join(f"&{key}={value}" for key, value in options.items()))
        assert isinstance(opened_one, RabbitStore)
        opened.append(opened_one)
        return opened_one

    yield open_it
    for store in opened:
        store.close()
    remove_store(rabbitmq.url, name)


@pytest.fixture
def store(open_one: Callable[..., RabbitStore]) -> RabbitStore:
    return open_one()


@pytest.fixture
def channel(rabbitmq: RabbitMQ) -> Iterator[Any]:
    """Somebody else's channel to the same broker."""
    connection = pika.BlockingConnection(pika.URLParameters(rabbitmq.url))
    yield connection.channel()
    if connection.is_open:
        connection.close()
