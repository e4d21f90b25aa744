"""Whoever sends a message on dies before the broker has the next copy: the first one is still there."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pika
import pytest

from homing import Message
from homing.errors import StoreError
from homing.stores.rabbitmq.store import RabbitStore
from homing.stores.rabbitmq.topology import dead_queue
from homing.testing.conformance.waiting import eventually, take

pytestmark = [pytest.mark.services, pytest.mark.chaos]

_DIES_BEFORE_IT_SENDS = """
import os, signal, sys
from homing import open_store
from homing.stores.rabbitmq.publisher import Publisher

url, way = sys.argv[1:]
store = open_store(url)
message = store.retrieve() if way in ("release", "dead-letter", "postpone") else None
Publisher.publish = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
if way == "release":
    store.acknowledge(message, success=False)
elif way == "dead-letter":
    store.dead_letter(message, reason="bad")
elif way == "postpone":
    store.postpone(message, 60, attempts=1)
else:
    store.retrieve()
"""


def _die(url: str, way: str) -> None:
    ended = subprocess.run([sys.executable, "-c", _DIES_BEFORE_IT_SENDS, url, way], timeout=60, check=False)
    assert ended.returncode == -signal.SIGKILL, "it came past the place where it was to die"


def _left(channel: Any, queue: str) -> bytes:
    """What the broker hands out next, once it has noticed that its consumer is gone."""
    return eventually(lambda: channel.basic_get(queue, auto_ack=True)[2], timeout=8)  # type: ignore[no-any-return]


@pytest.mark.parametrize("way", ["release", "dead-letter", "postpone"])
def test_a_message_sent_on_by_its_consumer_is_acknowledged_only_when_the_copy_is_there(
    store: RabbitStore, channel: Any, name: str, url: str, way: str
) -> None:
    store.store("a")

    _die(url, way)

    assert _left(channel, name) == b"a"


@pytest.mark.parametrize("way", ["expired", "poison", "unreadable", "early", "classic"])
def test_a_message_that_has_to_go_elsewhere_is_acknowledged_only_when_it_is_there(
    open_one: Callable[..., RabbitStore], channel: Any, name: str, url: str, way: str
) -> None:
    options = {"poison": {"max_deliveries": 1}, "classic": {"queue_type": "classic"}}.get(way, {})
    store = open_one(**options)
    content = b"{" if way == "unreadable" else b"a"
    if way in ("unreadable", "early"):
        assert store.retrieve() is None  # makes the queue
        in_an_hour = int((time.time() + 3600) * 1e6)
        encoding, headers = ("json", {}) if way == "unreadable" else ("text", {"homing-due-at": in_an_hour})
        properties = pika.BasicProperties(message_id="m1", type=f"homing/{encoding}/0", headers=headers)
        channel.basic_publish("", name, content, properties)
    else:
        store.store(Message("m1", "a", time_to_live=timedelta(milliseconds=50) if way == "expired" else None))
    if way in ("poison", "classic"):
        take(store)
    store.close()  # which returns what it holds, as a crash does
    time.sleep(0.1)

    _die(url + "".join(f"&{key}={value}" for key, value in options.items()), way)

    assert _left(channel, name) == content


def test_a_message_whose_way_elsewhere_is_refused_is_the_next_again(
    store: RabbitStore, channel: Any, name: str
) -> None:
    assert store.retrieve() is None  # makes the queues
    store.store(Message("m1", "old", time_to_live=timedelta(milliseconds=50)))
    time.sleep(0.1)
    channel.queue_delete(dead_queue(name))
    with pytest.raises(StoreError, match="m1"):
        store.retrieve()

    assert store.retrieve() is None  # the dead letters have a queue again by now

    assert store.lengths()["dead"] == 1


def test_a_dead_letter_that_the_broker_refuses_leaves_the_message_with_its_consumer(
    store: RabbitStore, channel: Any, name: str
) -> None:
    store.store("a")
    message = take(store)
    channel.queue_delete(dead_queue(name))
    with pytest.raises(StoreError, match=message.id):
        store.dead_letter(message, reason="bad")

    store.dead_letter(message, reason="bad")

    assert store.lengths()["dead"] == 1
    assert store.retrieve() is None
