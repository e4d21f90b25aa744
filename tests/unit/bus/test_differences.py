"""What docs/bus.md says is different from what was asked for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus.amqp import AmqpMessageBodyType

from homing.bus import Administrator, Message, MessageReceiver
from homing.bus.azure.messages import to_sdk
from homing.bus.broker import ReceiveLink


@pytest.mark.parametrize("body", ["text", "", 7, 2**70, 1.5, None, True, b"\x00", [1], {"a": None}])
def test_every_body_is_sent_as_a_data_section(body: Any) -> None:
    assert to_sdk(Message(body=body)).raw_amqp_message.body_type is AmqpMessageBodyType.DATA


@pytest.fixture
def waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[MessageReceiver, list[float]]]:
    """A receiver, and how long it waits for messages."""
    bus, found = f"sqlite:///{tmp_path}/bus.db", list[float]()

    class Link:
        def receive(self, limit: int, wait: float) -> list[Any]:
            found.append(wait)
            return []

        def close(self) -> None:
            pass

    def link(self: MessageReceiver, dead_lettered: bool) -> ReceiveLink:
        return Link()  # type: ignore[return-value]

    monkeypatch.setattr(MessageReceiver, "_link", link)
    with Administrator(bus) as admin:
        admin.create_queue("orders")
    with MessageReceiver(bus, queue="orders") as receiver:
        yield receiver, found


def test_a_receiver_waits_sixty_seconds_for_one_or_a_batch_unless_it_is_said(
    waits: tuple[MessageReceiver, list[float]],
) -> None:
    receiver, found = waits
    receiver.receive()
    receiver.receive_payload()
    receiver.receive_batch(10)
    receiver.receive_batch(10, server_wait_time=None)
    receiver.receive_batch(10, server_wait_time=5)
    assert found == [60, 60, 60, 60, 5]
