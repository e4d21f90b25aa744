"""A broker that is away, and a network that brings nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from homing import open_store
from homing.errors import StoreUnavailableError
from homing.stores.rabbitmq.store import RabbitStore
from homing.testing.conformance.waiting import take
from tests.bounded import outcome_of
from tests.proxy import Proxy
from tests.rabbitmq_server import RabbitMQ

pytestmark = pytest.mark.services


@pytest.mark.parametrize(
    "ask",
    [lambda store: store.store("a"), lambda store: store.retrieve(), lambda store: store.lengths()],
    ids=["store", "retrieve", "lengths"],
)
def test_a_network_that_brings_nothing_is_not_waited_for_for_ever(
    rabbitmq: RabbitMQ, name: str, store: RabbitStore, ask: Callable[[Any], Any]
) -> None:
    store.store("before")
    with (
        Proxy(rabbitmq.port) as proxy,
        open_store(f"amqp://guest:guest@127.0.0.1:{proxy.port}/?store={name}&timeout=1") as far,
    ):
        take(far)  # both are connected
        far.store("also before")
        with proxy.half_open():
            assert isinstance(outcome_of(lambda: ask(far)), StoreUnavailableError)
        assert proxy.counts["withheld"]
        far.store("after")


def test_a_broker_that_does_not_let_anybody_in_is_not_waited_for_for_ever(rabbitmq: RabbitMQ, name: str) -> None:
    with Proxy(rabbitmq.port) as proxy, proxy.half_open():
        far = open_store(f"amqp://guest:guest@127.0.0.1:{proxy.port}/?store={name}&timeout=1")
        assert isinstance(outcome_of(lambda: far.store("a")), StoreUnavailableError)
        assert isinstance(outcome_of(far.retrieve), StoreUnavailableError)
        far.close()
