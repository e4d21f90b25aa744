"""MessageReceiver."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from types import TracebackType
from typing import Any

from homing.binding import Converter, bind, describe_type
from homing.bus.broker import ReceiveLink, ReceiveOptions
from homing.bus.connection import entity_path, open_broker
from homing.bus.message import Message, MessageBatch, check_sequence_number
from homing.bus.options import ReceiveMode, RetryOptions
from homing.constraints import AtLeastOne, NotNegative, check
from homing.errors import BindingError, ConfigurationError, NotInFlightError, StoreError

#: The reason of a dead letter when its receiver gives none.
BY_RECEIVER = "DEADLETTERED_BY_RECEIVER"

_WAIT = 60.0  # seconds a receiver waits by default


class MessageReceiver:
    """Receives from a queue or a subscription: `MessageReceiver("sqlite:///bus.db", queue="orders")`.

    In PEEK_LOCK mode a message is locked until it is settled; the lock is renewed for up to
    `max_auto_lock_renew_duration` seconds, and when it is lost all the same, settling raises LeaseLostError and changes
    nothing. In RECEIVE_AND_DELETE mode receiving removes the message: a process that dies then loses it. `session_id`,
    or NEXT_SESSION, is needed where sessions are required. One thread at a time.
    """

    def __init__(
        self,
        connection: str,
        *,
        queue: str | None = None,
        topic: str | None = None,
        subscription: str | None = None,
        receive_mode: ReceiveMode = ReceiveMode.PEEK_LOCK,
        max_auto_lock_renew_duration: float = 300.0,
        session_id: str | None = None,
        retry: RetryOptions | None = None,
    ) -> None:
        self._path = entity_path(queue, topic, subscription)
        if topic is not None and subscription is None:
            raise ConfigurationError(f"cannot receive from topic {topic!r}: give one of its subscriptions")
        if not isinstance(receive_mode, ReceiveMode):
            raise ConfigurationError(f"receive_mode must be one of ReceiveMode, got {receive_mode!r}")
        check("max_auto_lock_renew_duration", max_auto_lock_renew_duration, NotNegative)
        self._options = ReceiveOptions(receive_mode, max_auto_lock_renew_duration, session_id, retry or RetryOptions())
        self._broker = open_broker(connection)
        self._links: dict[bool, ReceiveLink] = {}
        self._dead_tokens: set[str] = set()
        self._closed = False
        self._link(dead_lettered=False)  # does not connect, but lets the broker refuse wrong arguments

    # -- receiving ---------------------------------------------------------------------------------------------

    def receive(
        self, body_type: Any = Any, *, server_wait_time: float | None = None, dead_lettered: bool = False
    ) -> Message | None:
        """The next message; waits for it. None if none came within `server_wait_time` seconds (60).

        Its body is converted to `body_type`, as for a handler's parameter. A message that does not fit is abandoned and
        raises BindingError.
        """
        convert = self._converter(body_type)
        messages = self._receive(1, server_wait_time, dead_lettered)
        return self._bound(messages[0], convert) if messages else None

    def receive_payload(
        self, payload_type: Any = Any, *, server_wait_time: float | None = None, dead_lettered: bool = False
    ) -> Any:
        """Completes the next message and returns its body, as `receive` gives it; None if none came.

        The message cannot be settled afterwards: if the caller fails, its body is lost.
        """
        message = self.receive(payload_type, server_wait_time=server_wait_time, dead_lettered=dead_lettered)
        if message is None:
            return None
        if message.lock_token is not None:
            self.complete(message)
        return message.body

    def receive_batch(
        self, max_message_count: int, *, server_wait_time: float | None = None, dead_lettered: bool = False
    ) -> MessageBatch | None:
        """Up to `max_message_count` messages, as soon as there is one; None if none came."""
        check("max_message_count", max_message_count, AtLeastOne)
        messages = self._receive(max_message_count, server_wait_time, dead_lettered)
        return MessageBatch(messages) if messages else None

    def receive_deferred(self, sequence_number: int) -> Message:
        """The message that was deferred under this number; raises NoSuchMessageError when there is none."""
        check_sequence_number(sequence_number)
        return self._link(dead_lettered=False).receive_deferred(sequence_number)

    # -- settling ----------------------------------------------------------------------------------------------

    def complete(self, message: Message) -> None:
        """Finishes the message and removes it."""
        self._holder(message).complete(message)
        self._settled(message)

    def abandon(self, message: Message) -> None:
        """Makes the message available again at once; after `max_delivery_count` times it is a dead letter."""
        self._holder(message).abandon(message)
        self._settled(message)

    def dead_letter(self, message: Message, *, reason: str = BY_RECEIVER, error_description: str | None = None) -> None:
        """Moves the message to the dead letters, with its reason."""
        self._holder(message).dead_letter(message, reason, error_description)
        self._settled(message)

    def defer(self, message: Message) -> int:
        """Puts the message aside; returns the sequence number to receive it by."""
        self._holder(message).defer(message)
        self._settled(message)
        assert message.sequence_number is not None
        return message.sequence_number

    def renew_lock(self, message: Message) -> datetime:
        """Makes the lock last for its whole duration from now on; returns its new end."""
        return self._holder(message).renew_lock(message)

    def close(self) -> None:
        """Closes the connections. Idempotent; locks are not released, they run out."""
        if not self._closed:
            self._closed = True
            for link in self._links.values():
                link.close()
            self._broker.close()

    # -- inside ------------------------------------------------------------------------------------------------

    def _converter(self, wanted: Any) -> Converter:
        if wanted is not Any and self._options.mode is ReceiveMode.RECEIVE_AND_DELETE:
            raise ConfigurationError(
                f"a body that is not a {describe_type(wanted)} would be lost with RECEIVE_AND_DELETE: receive with "
                "PEEK_LOCK, or without a type"
            )
        return bind(wanted)

    def _bound(self, message: Message, convert: Converter) -> Message:
        try:
            return replace(message, body=convert(message.body))
        except Exception as error:
            # Any exception of the caller's type: the message stays for another receiver, and is dead-lettered in the
            # end.
            self.abandon(message)
            what = str(error) if isinstance(error, BindingError) else f"{type(error).__name__}: {error}"
            raise BindingError(f"message {message.message_id} of {self._path!r}: {what}") from error

    def _receive(self, limit: int, wait: float | None, dead_lettered: bool) -> list[Message]:
        wait = _WAIT if wait is None else wait
        check("server_wait_time", wait, NotNegative)
        messages = self._link(dead_lettered).receive(limit, wait)
        if dead_lettered:
            self._dead_tokens.update(message.lock_token for message in messages if message.lock_token)
        return messages

    def _link(self, dead_lettered: bool) -> ReceiveLink:
        if self._closed:
            raise StoreError(f"the receiver of {self._path!r} is closed")
        if dead_lettered not in self._links:
            link = self._broker.open_receiver(self._path, self._options, dead_lettered=dead_lettered)
            self._links[dead_lettered] = link
        return self._links[dead_lettered]

    def _holder(self, message: Message) -> ReceiveLink:
        """The link the message came through; raises NotInFlightError for one that cannot be settled."""
        if not isinstance(message, Message):
            raise NotInFlightError(f"only a received homing.bus.Message can be settled, got {type(message).__name__}")
        if self._options.mode is ReceiveMode.RECEIVE_AND_DELETE:
            raise NotInFlightError(
                f"message {message.message_id} was received with RECEIVE_AND_DELETE and is finished; to settle "
                "messages, receive them with PEEK_LOCK"
            )
        if message.lock_token is None:
            raise NotInFlightError(f"message {message.message_id} was not received, and cannot be settled")
        return self._link(message.lock_token in self._dead_tokens)

    def _settled(self, message: Message) -> None:
        self._dead_tokens.discard(message.lock_token or "")

    def __enter__(self) -> MessageReceiver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
