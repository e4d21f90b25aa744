"""Receiving from a queue or subscription of the service, or from its dead letters."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from functools import partial
from typing import Any

from azure.servicebus import (
    NEXT_AVAILABLE_SESSION,
    ServiceBusClient,
    ServiceBusReceivedMessage,
    ServiceBusReceiver,
    ServiceBusSession,
    ServiceBusSubQueue,
)
from azure.servicebus.exceptions import OperationTimeoutError

from homing.bus.azure.messages import to_bus
from homing.bus.broker import NEXT_SESSION, ReceiveLink, ReceiveOptions
from homing.bus.message import Message
from homing.bus.options import ReceiveMode
from homing.errors import NoSuchMessageError, NotInFlightError
from homing.invocation.fork_safety import leave_to_parent, start_over_after_fork
from homing.lease_renewer import LeaseRenewer
from homing.stores.servicebus.sdk import Receiving, receiver_for, seconds_until, translated

log = logging.getLogger(__name__)

_FORGET_FROM = 10_000
_SLICE = 0.3  # seconds of waiting, between which a lock can be renewed
_GIVE_WAY = 0.002  # gives other threads time to take the lock
_SESSION = "session"  # the key of its lock at the renewer; messages use their tokens


class ServiceReceiveLink(ReceiveLink):
    """Settlements are confirmed by the service before they return, as the SDK does from 7.15 on.

    RECEIVE_AND_DELETE also locks a message and then completes it: with a link of that mode the service would push and
     remove messages after the last receive, and they would be lost when the link is closed.
    """

    def __init__(
        self,
        connect: Callable[[], ServiceBusClient],
        path: str,
        options: ReceiveOptions,
        *,
        dead_lettered: bool = False,
    ) -> None:
        super().__init__(path, options, dead_lettered=dead_lettered)
        self._connect = connect
        self._locks = options.mode is ReceiveMode.PEEK_LOCK
        self._leases = LeaseRenewer("homing-bus-locks")
        self._set_up()
        start_over_after_fork(self)

    def start_over(self) -> None:
        """Called in a forked process, which connects for itself. What was received before is for the parent to
        settle."""
        leave_to_parent(self._client, self._receiver, self._receiving, self._held)
        self._set_up()

    def _set_up(self) -> None:
        self._client = self._connect()
        self._receiver: ServiceBusReceiver | None = None
        self._receiving: Receiving | None = None
        self._held: dict[str, ServiceBusReceivedMessage] = {}
        #: A receiver of the SDK is not thread-safe: a renewal beside a receive was seen to break both.
        self._turn = threading.Lock()

    # -- receiving ---------------------------------------------------------------------------------------------

    def receive(self, limit: int, wait: float) -> list[Message]:
        if self._open(wait) is None:
            return []
        self._keep_session(waiting=wait)
        assert self._receiving is not None
        until = time.monotonic() + wait
        while True:
            left = max(until - time.monotonic(), 0.0)
            with self._translated("receive from"):
                received = self._receiving.receive(limit, min(left, _SLICE))
            if received or time.monotonic() >= until:
                return self._handed_out(received)
            time.sleep(_GIVE_WAY)

    def receive_deferred(self, sequence_number: int) -> Message:
        receiver = self._open(None)
        try:
            with self._translated("receive a deferred message of"):
                found = receiver.receive_deferred_messages(sequence_number) if receiver is not None else []
        except NoSuchMessageError:
            found = []
        if not found:
            raise self._not_deferred(sequence_number)
        return self._handed_out(found)[0]

    def _open(self, wait: float | None) -> ServiceBusReceiver | None:
        """The receiver; None if no session was free within `wait` seconds."""
        if self._receiver is not None:
            return self._receiver
        options: dict[str, Any] = {}
        if self._dead:
            options["sub_queue"] = ServiceBusSubQueue.DEAD_LETTER
        elif self._options.session_id == NEXT_SESSION:
            options.update(session_id=NEXT_AVAILABLE_SESSION, max_wait_time=max(wait or 1.0, 1.0))
        elif self._options.session_id is not None:
            options["session_id"] = self._options.session_id
        receiver = receiver_for(self._client, self._path, **options)
        with self._translated("receive from"):
            try:
                # Before the first receive, which would otherwise spend its time on connecting.
                receiver.__enter__()
            except OperationTimeoutError:
                receiver.close()
                if options.get("session_id") == NEXT_AVAILABLE_SESSION:
                    return None
                raise
            except BaseException:
                receiver.close()
                raise
        self._receiver, self._receiving = receiver, Receiving(receiver)
        return receiver

    def _handed_out(self, received: Sequence[ServiceBusReceivedMessage]) -> list[Message]:
        self._keep_session()
        return [self._locked(one) for one in received] if self._locks else self._deleted(received)

    def _locked(self, received: ServiceBusReceivedMessage) -> Message:
        assert self._receiver is not None
        session: ServiceBusSession | None = self._receiver.session  # None where there are no sessions
        until = received.locked_until_utc if session is None else session.locked_until_utc
        message = self._to_bus(received, until)
        if message.lock_token is not None:
            self._forget_old()
            self._held[message.lock_token] = received
            if session is None:
                self._leases.keep(
                    message.lock_token,
                    f"message {message.message_id}",
                    partial(self._renewed, message),
                    lasts=seconds_until(until),
                    longest=self._options.max_auto_lock_renew_duration,
                )
        return message

    def _deleted(self, received: Sequence[ServiceBusReceivedMessage]) -> list[Message]:
        """Those whose removal the service has confirmed; the others are delivered again."""
        assert self._receiver is not None
        deleted: list[Message] = []
        for one in received:
            message = self._to_bus(one, None)
            try:
                with self._translated(f"delete message {message.message_id} of"):
                    self._receiver.complete_message(one)
            except Exception as error:
                if not deleted:
                    raise
                # Messages that are deleted must reach the caller: no receiver gets them again.
                log.warning(
                    "some messages of %r could not be deleted, and will be received again: %s", self._path, error
                )
                break
            deleted.append(message)
        return deleted

    def _to_bus(self, received: ServiceBusReceivedMessage, locked_until: datetime | None) -> Message:
        return to_bus(received, locked_until, dead_letter_of=self._path if self._dead else None)

    def _renewed(self, message: Message) -> float:
        return seconds_until(self.renew_lock(message))

    def _keep_session(self, *, waiting: float = 0.0) -> None:
        assert self._receiver is not None
        session: ServiceBusSession | None = self._receiver.session
        if session is not None:
            self._leases.keep(
                _SESSION,
                f"session {session.session_id}",
                self._renew_session,
                lasts=seconds_until(session.locked_until_utc),
                longest=self._options.max_auto_lock_renew_duration + waiting,
            )

    def _renew_session(self) -> float:
        assert self._receiver is not None
        with self._translated("renew the lock on a session of"):
            return seconds_until(self._receiver.session.renew_lock())

    # -- settling ----------------------------------------------------------------------------------------------

    def complete(self, message: Message) -> None:
        self._settle(message, "complete", lambda receiver, held: receiver.complete_message(held))

    def abandon(self, message: Message) -> None:
        self._settle(message, "abandon", lambda receiver, held: receiver.abandon_message(held))

    def defer(self, message: Message) -> None:
        self._refuse_dead(message)
        self._settle(message, "defer", lambda receiver, held: receiver.defer_message(held))

    def dead_letter(self, message: Message, reason: str, description: str | None) -> None:
        self._refuse_dead(message)
        self._settle(
            message,
            "dead-letter",
            lambda receiver, held: receiver.dead_letter_message(held, reason=reason, error_description=description),
        )

    def _settle(
        self,
        message: Message,
        doing: str,
        settle: Callable[[ServiceBusReceiver, ServiceBusReceivedMessage], None],
    ) -> None:
        held = self._find(message)
        assert self._receiver is not None
        with self._translated(f"{doing} message {message.message_id} of"):
            settle(self._receiver, held)
        self._leases.forget(str(message.lock_token))
        self._held.pop(str(message.lock_token), None)

    def renew_lock(self, message: Message) -> datetime:
        held = self._find(message)
        assert self._receiver is not None
        with self._translated(f"renew the lock on message {message.message_id} of"):
            session: ServiceBusSession | None = self._receiver.session
            return self._receiver.renew_message_lock(held) if session is None else session.renew_lock()

    def close(self) -> None:
        self._leases.close()
        with self._translated("close the receiver of"):
            if self._receiver is not None:
                self._receiver.close()
            self._client.close()

    # -- inside ------------------------------------------------------------------------------------------------

    def _find(self, message: Message) -> ServiceBusReceivedMessage:
        held = self._held.get(str(message.lock_token))
        if held is None:
            raise NotInFlightError(
                f"message {message.message_id} of {self._path!r} was not received here, or is settled already"
            )
        return held

    def _forget_old(self) -> None:
        """Forgets messages that were never settled and whose lock ran out."""
        if len(self._held) >= _FORGET_FROM:
            now = datetime.now(timezone.utc)
            self._held = {token: held for token, held in self._held.items() if (held.locked_until_utc or now) >= now}

    @contextmanager
    def _translated(self, doing: str) -> Iterator[None]:
        """Uses the SDK in this thread alone, and translates its errors."""
        with self._turn, translated(f"{doing} {self._path!r}"):
            yield
