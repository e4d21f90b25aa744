"""MessageSender."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from types import TracebackType
from typing import Any

from homing.bus.connection import entity_path, open_broker
from homing.bus.message import Message, MessageBatch, check_sequence_number
from homing.bus.options import RetryOptions
from homing.errors import StoreError, UnstorableContentError


class MessageSender:
    """Sends to one queue or topic: `MessageSender("sqlite:///bus.db", queue="orders")`.

    Every method returns only when what was sent is durable. A message that is sent is not changed. Thread-safe on the
    embedded bus; on the service, one thread at a time.
    """

    def __init__(
        self, connection: str, *, queue: str | None = None, topic: str | None = None, retry: RetryOptions | None = None
    ) -> None:
        self._path = entity_path(queue, topic)
        self._broker = open_broker(connection)
        self._link = self._broker.open_sender(self._path, retry or RetryOptions())
        self._closed = False

    def send(self, message: Message) -> None:
        """Sends one message; raises TooLargeError or UnstorableContentError for one that the bus does not accept."""
        self._send([message])

    def send_payload(self, payload: Any) -> None:
        """Sends a message that has only a body."""
        self._send([Message(body=payload)])

    def send_batch(self, batch: MessageBatch | Sequence[Message]) -> None:
        """Sends all of these or none: a batch that is too large is refused whole."""
        messages = batch.messages if isinstance(batch, MessageBatch) else tuple(batch)
        if messages:
            self._send(messages)

    def schedule(self, message: Message, at: datetime) -> int:
        """Sends a message that receivers get from `at` on; returns the sequence number to cancel it by."""
        self._check([message])
        if not isinstance(at, datetime) or at.tzinfo is None:
            raise UnstorableContentError(f"at must be an aware datetime, got {at!r}")
        return self._link.schedule(message, at)

    def cancel(self, sequence_number: int) -> None:
        """Cancels a scheduled message; raises NoSuchMessageError if it is due already or unknown."""
        self._check(())
        check_sequence_number(sequence_number)
        self._link.cancel(sequence_number)

    def close(self) -> None:
        """Closes the connections. Idempotent."""
        if not self._closed:
            self._closed = True
            self._link.close()
            self._broker.close()

    def _send(self, messages: Sequence[Message]) -> None:
        self._check(messages)
        self._link.send(messages)

    def _check(self, messages: Sequence[Message]) -> None:
        if self._closed:
            raise StoreError(f"the sender to {self._path!r} is closed")
        for message in messages:
            if not isinstance(message, Message):
                raise UnstorableContentError(
                    f"expected a homing.bus.Message, got {type(message).__name__}; send_payload sends a body alone"
                )
            message.check()

    def __enter__(self) -> MessageSender:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
