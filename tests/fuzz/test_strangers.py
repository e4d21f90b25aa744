"""Whatever others put into a RabbitMQ queue: handed out, or in the dead-letter queue, and all neighbours arrive."""

from __future__ import annotations

import time
import uuid
from datetime import datetime
from typing import Any

import pika
import pytest
from hypothesis import given
from hypothesis import strategies as st

from homing import open_store
from tests.fuzz.profile import examples
from tests.rabbitmq_server import RabbitMQ

pytestmark = pytest.mark.services

_SHORT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
_TABLE_VALUES: Any = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**31), 2**31 - 1) | st.just(2**62) | _SHORT | st.binary(max_size=9)
    | st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1)) | st.decimals(-99, 99, places=1),  # noqa: DTZ001
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_SHORT, inner, max_size=2),
    max_leaves=4,
)  # fmt: skip
_OURS = st.sampled_from(
    ["homing-encoding", "homing-headers", "homing-envelope", "homing-enqueued-at", "homing-due-at", "homing-deliveries",
     "homing-crashes", "homing-dead-letter-reason", "homing-id", "x-death", "x-delivery-count"]
)  # fmt: skip
_PROPERTIES = st.fixed_dictionaries(
    {},
    optional={
        "headers": st.dictionaries(_OURS | _SHORT, _TABLE_VALUES, max_size=4),
        "content_type": _SHORT | st.sampled_from(["application/json", "text/plain; charset=utf-7"]),
        "content_encoding": _SHORT,
        "message_id": _SHORT,
        "correlation_id": _SHORT,
        "priority": st.integers(0, 255),
        "timestamp": st.integers(0, 2**63 - 1),
        "type": _SHORT | st.sampled_from(["homing/json/1", "homing/text/1", "homing/rot13/1", "homing/"]),
        "expiration": st.just("3600000"),
    },
)
_BODIES = st.binary(max_size=40) | st.sampled_from([b"{", b'{"a": 1}', b"\xff\xfe", b""])


def test_a_strangers_message_holds_up_nobody(rabbitmq: RabbitMQ) -> None:
    name = f"f{uuid.uuid4().hex[:8]}"
    connection = pika.BlockingConnection(pika.URLParameters(rabbitmq.url))
    channel = connection.channel()
    channel.confirm_delivery()
    with open_store(f"{rabbitmq.url}?store={name}") as store:
        assert store.retrieve() is None  # makes the queues

        @examples(25)
        @given(st.lists(st.tuples(_BODIES, _PROPERTIES), min_size=1, max_size=3))
        def check(strangers: list[tuple[bytes, dict[str, Any]]]) -> None:
            for body, properties in strangers:
                channel.basic_publish("", name, body, pika.BasicProperties(**properties))
            neighbour = store.store({"neighbour": True})
            seen: list[str] = []
            deadline = time.monotonic() + 60
            while neighbour not in seen or len(seen) + waiting(channel, f"{name}.dead") < len(strangers) + 1:
                assert time.monotonic() < deadline, f"only {len(seen)} of {len(strangers)} and a neighbour came"
                message = store.retrieve()
                if message is not None:
                    seen.append(message.id)
                    store.acknowledge(message)
            assert len(seen) + waiting(channel, f"{name}.dead") == len(strangers) + 1
            channel.queue_purge(f"{name}.dead")

        check()
    connection.close()


def waiting(channel: Any, queue: str) -> int:
    return int(channel.queue_declare(queue, passive=True).method.message_count)
