"""Sending to a queue or topic of the service."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from azure.servicebus import ServiceBusClient

from homing.bus.azure.messages import to_sdk
from homing.bus.broker import SendLink
from homing.bus.message import Message
from homing.errors import NoSuchMessageError, StoreError
from homing.invocation.fork_safety import leave_to_parent, start_over_after_fork
from homing.stores.servicebus.sdk import sender_for, translated


class ServiceSendLink(SendLink):
    """The service confirms every send before it returns. Many go as one AMQP message: accepted or refused as a
    whole."""

    def __init__(self, connect: Callable[[], ServiceBusClient], path: str) -> None:
        super().__init__(path)
        self._connect = connect
        self._set_up()
        start_over_after_fork(self)

    def _set_up(self) -> None:
        self._client = self._connect()
        self._sender = sender_for(self._client, self._path)

    def start_over(self) -> None:
        """Called in a forked process, which connects for itself."""
        leave_to_parent(self._client, self._sender)
        self._set_up()

    def send(self, messages: Sequence[Message]) -> None:
        outgoing = [to_sdk(message) for message in messages]
        with translated(f"send {_count(messages)} to {self._path!r}"):
            self._sender.send_messages(outgoing[0] if len(outgoing) == 1 else outgoing)

    def schedule(self, message: Message, at: datetime) -> int:
        outgoing = to_sdk(message)
        with translated(f"schedule a message on {self._path!r}"):
            numbers = self._sender.schedule_messages(outgoing, at)
        if not numbers:
            raise StoreError(
                f"the service gave no sequence number for message {outgoing.message_id}, scheduled on {self._path!r}: "
                "it may be a duplicate of one that was sent before, and cannot be cancelled"
            )
        return int(numbers[0])

    def cancel(self, sequence_number: int) -> None:
        try:
            with translated(f"cancel the message {sequence_number} of {self._path!r}"):
                self._sender.cancel_scheduled_messages(sequence_number)
        except NoSuchMessageError as error:
            raise self._not_scheduled(sequence_number) from error

    def close(self) -> None:
        with translated(f"close the sender to {self._path!r}"):
            self._sender.close()
            self._client.close()


def _count(messages: Sequence[Message]) -> str:
    return "a message" if len(messages) == 1 else f"a batch of {len(messages)} messages"
