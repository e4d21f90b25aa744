"""Listeners that are killed: what merely waited for its next attempt has killed nobody, and what kills is found."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from homing import ListenerConfig, Message, StoreListener, open_store
from homing.message import DEAD, SCHEDULED
from homing.store import ATTEMPTS, CRASHED
from homing.stores.rabbitmq.store import RabbitStore
from homing.testing.conformance.waiting import eventually, take

pytestmark = [pytest.mark.services, pytest.mark.chaos]

MAX_DELIVERIES = 3

LISTENER = """
import os, sys, time
from homing import ListenerConfig, StoreListener, open_store

def on_message(content):
    if content == "bad" and content in seen:
        os._exit(9)
    seen.append(content)
    print(len(seen), flush=True)
    raise ConnectionError("the destination is away")

seen, retry_interval = [], float(sys.argv[2])
with open_store(sys.argv[1]) as store:
    config = ListenerConfig(polling_interval=0.05, max_retries=1000, retry_interval=retry_interval)
    listener = StoreListener(store, config)
    listener.attach(on_message)
    listener.start()
    time.sleep(600)
"""


def listen_until(url: str, retry_interval: float, calls: int, then: Callable[[], object] = lambda: None) -> int:
    """A listener in a process of its own, killed when its service was called so often and `then` returns, or nothing
    came for too long; how it ended."""
    command = [sys.executable, "-c", LISTENER, url, str(retry_interval)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        patience = threading.Timer(40, process.kill)
        patience.start()
        if any(int(line) >= calls for line in process.stdout):
            try:
                then()
            finally:
                process.kill()
        patience.cancel()
        return process.wait(60)


def test_what_waits_for_a_retry_when_its_listener_is_killed_is_never_dead(
    open_one: Callable[..., RabbitStore], url: str
) -> None:
    store = open_one(max_deliveries=MAX_DELIVERIES)
    store.store_many(["a", "b", "c"])

    def all_wait() -> None:
        eventually(lambda: store.lengths()[SCHEDULED] == 3, timeout=30)  # at the broker, in nobody's hand

    for _ in range(MAX_DELIVERIES + 3):  # on a busy machine a listener may come to nothing
        assert listen_until(f"{url}&max_deliveries={MAX_DELIVERIES}", 6, 3, all_wait) == -signal.SIGKILL

    delivered: dict[str, Any] = {}

    def deliver(message: Message) -> None:
        delivered[message.content] = message.headers[ATTEMPTS]

    with StoreListener(store, ListenerConfig(polling_interval=0.05)) as listener:
        listener.attach(deliver)
        listener.start()
        eventually(lambda: len(delivered) + store.lengths()[DEAD] == 3, timeout=60)
    assert store.lengths()[DEAD] == 0
    assert sorted(delivered) == ["a", "b", "c"]
    assert min(delivered.values()) >= MAX_DELIVERIES + 1


def test_a_message_that_fails_first_and_kills_at_its_next_attempt_is_found(
    open_one: Callable[..., RabbitStore], url: str
) -> None:
    store = open_one(max_deliveries=MAX_DELIVERIES)
    store.store("bad")
    for _ in range(MAX_DELIVERIES):
        assert listen_until(f"{url}&max_deliveries={MAX_DELIVERIES}", 0.05, 1000) == 9

    assert eventually(lambda: store.retrieve() is None and store.lengths()[DEAD] == 1)
    with open_store(f"{url}.dead") as dead:
        assert take(dead).dead_letter_reason == CRASHED
