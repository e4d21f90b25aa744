"""ServiceBusStore: messages in a queue, or a subscription, of Azure Service Bus."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any

from azure.servicebus import (
    ServiceBusMessage,
    ServiceBusReceivedMessage,
    ServiceBusReceiver,
    ServiceBusSender,
    ServiceBusSubQueue,
)

from homing import store as contract
from homing.errors import (
    LeaseLostError,
    NotInFlightError,
    UnreadableMessageError,
)
from homing.failure import crash_text
from homing.invocation.fork_safety import leave_to_parent, start_over_after_fork
from homing.lease_renewer import LeaseRenewer
from homing.message import AVAILABLE, Message
from homing.store import BatchLease
from homing.stores.bulk import BulkStore
from homing.stores.servicebus import envelope, sdk
from homing.stores.servicebus.options import ServiceBusOptions
from homing.stores.validation import as_message, check_claim

log = logging.getLogger(__name__)

_REMEMBERED = 10_000
_PEEKED = 250  # messages looked at in one request


@dataclass(eq=False)
class LockedMessage:
    """A message in a caller's hands until `deadline`, in monotonic seconds."""

    received: ServiceBusReceivedMessage
    message: Message
    deadline: float


class ServiceBusStore(BulkStore):
    """Messages in a queue of Service Bus, or in a subscription: then `store` sends to its topic.

    `store` returns when the service has confirmed the message; `store_many` sends one AMQP message, which the service
    takes or refuses whole, and raises TooLargeError for what does not fit into one. Settlements are confirmed too.

    A lease lasts `ack_wait` seconds. For so long this object renews the message's lock, however short the queue's own
    lock duration is; then it abandons the message, so that it comes again at once. When the process dies, the lock runs
    out at the service. Settling after either raises LeaseLostError.

    The queue's own max delivery count dead-letters what was abandoned or lost too often, whatever this store says;
    `max_deliveries` is a lower limit of the store's.
    """

    features = contract.STORE_KINDS["servicebus"].features

    def __init__(self, connection_string: str, options: ServiceBusOptions) -> None:
        self.name = options.name if options.subscription is None else f"{options.name}/{options.subscription}"
        self._options = options
        self._connect = partial(
            sdk.connect, connection_string, retry_total=options.retries, retry_backoff_factor=options.retry_delay
        )
        self._held: dict[str, LockedMessage] = {}
        self._lost: OrderedDict[str, None] = OrderedDict()
        self._leases = self._new_leases()
        self._set_up()
        start_over_after_fork(self)

    def _set_up(self) -> None:
        self._client = self._connect()
        self._lock = threading.RLock()
        self._sender: ServiceBusSender | None = None
        self._receivers: dict[bool, ServiceBusReceiver] = {}
        self._receiving: sdk.Receiving | None = None

    def start_over(self) -> None:
        """In a forked process, which connects for itself. What was retrieved before is the parent's to settle: here
        that raises LeaseLostError."""
        leave_to_parent(self._client, self._sender, self._receivers, self._receiving)
        self._leases.start_over()
        self._set_up()
        self._lose([*self._held])

    # -- the three verbs ---------------------------------------------------------------------------------------

    def retrieve(self) -> Message | None:
        with self._lock:
            self._leases.renew_due()  # a caller that retrieves without a pause leaves no other thread the time
            while True:
                with self._translated("retrieve from"):
                    self._receiver()
                    assert self._receiving is not None
                    found = self._receiving.receive(1, self._options.patience)
                if not found:
                    return None
                message = self._hand_out(found[0])
                if message is not None:
                    return message

    def acknowledge(self, message: str | Message, success: bool = True, *, transaction: Any = None) -> None:
        self._refuse_transaction(transaction)
        with self._lock:
            held = self._find(message)
            with self._settling("acknowledge" if success else "release", held):
                receiver = self._receiver()
                (receiver.complete_message if success else receiver.abandon_message)(held.received)

    def close(self) -> None:
        """Ends all connections; what was retrieved and not settled comes again when its lock has run out."""
        leases, self._leases = self._leases, self._new_leases()  # it may be used again
        leases.close()
        with self._lock:
            links = [link for link in (self._sender, *self._receivers.values()) if link is not None]
            self._sender, self._receivers = None, {}
            self._lose([*self._held])
            # The SDK takes half a second for each.
            with ThreadPoolExecutor(max_workers=3) as pool, self._translated("close"):
                list(pool.map(lambda link: link.close(), links))
                self._client.close()

    # -- many at a time ----------------------------------------------------------------------------------------

    def store_many(self, contents: Iterable[Any], *, transaction: Any = None) -> list[str]:
        self._refuse_transaction(transaction)
        messages = [as_message(content) for content in contents]
        outgoing = [envelope.pack(message) for message in messages]
        if outgoing:
            self._send(outgoing)
        return [message.id for message in messages]

    def _send(self, outgoing: list[ServiceBusMessage]) -> None:
        with self._lock, self._translated(f"store {len(outgoing)} messages in"):
            if self._sender is None:
                self._sender = sdk.sender_for(self._client, self._options.name)
            self._sender.send_messages(outgoing[0] if len(outgoing) == 1 else outgoing)

    def renew(self, held: BatchLease | Message | Sequence[Message], lease: float) -> None:
        if isinstance(held, BatchLease):
            raise self._lacks(contract.CLAIM)
        check_claim(1, lease)
        with self._lock:
            found = [self._find(message) for message in ([held] if isinstance(held, Message) else held)]
            for each in found:
                self._renew_lock(each)
                self._keep(each, lease)

    # -- other ends, and looking -------------------------------------------------------------------------------

    def dead_letter(self, message: str | Message, *, reason: str, description: str | None = None) -> None:
        with self._lock:
            self._dead_letter(self._find(message), reason, description)

    def postpone(self, message: Message, seconds: float, *, attempts: int) -> bool:
        if self._options.subscription is not None:
            return False  # what is sent to a topic goes to its other subscriptions too
        with self._lock:
            held = self._find(message)
            due = datetime.now(timezone.utc) + timedelta(seconds=seconds)
            self._send([envelope.pack_again(held.message, due, attempts)])
            with self._settling("finish", held):
                self._receiver().complete_message(held.received)
        return True

    def peek(self, limit: int = 100, *, after: int = 0, dead: bool = False) -> list[Message]:
        """Messages that wait, or dead ones, in order of sequence_number, from the one behind `after` on.

        Not `browse`: the service does not tell which of them are leased, and forgets what is acknowledged.
        """
        found: list[Message] = []
        while len(found) < limit:
            with self._lock, self._translated("look into"):
                page = self._receiver(dead=dead).peek_messages(min(limit, _PEEKED), sequence_number=after + 1)
            if not page:
                break
            after = page[-1].sequence_number or after
            found += [self._look(one, dead=dead) for one in page]
        return found[:limit]

    def has_due(self, *, partitions: Collection[int] | None = None) -> bool:
        if partitions is not None:
            self.require_partitions(partitions)
        # What can be handed out may stand before, between or behind messages that are scheduled or deferred.
        after = 0
        while page := self.peek(after=after):
            if any(message.state == AVAILABLE for message in page):
                return True
            after = page[-1].sequence_number or after + 1
        return False

    # -- leases ------------------------------------------------------------------------------------------------

    def _new_leases(self) -> LeaseRenewer:
        return LeaseRenewer(f"homing-servicebus-{self.name}")

    def _keep(self, held: LockedMessage, lease: float) -> None:
        """Renews its lock for so long, and then gives it back."""
        held.deadline = time.monotonic() + lease
        self._leases.keep(
            held.message.lock_token,
            f"message {held.message.id} of store {self.name!r}",
            partial(self._renew_lock, held),
            lasts=sdk.seconds_until(held.received.locked_until_utc),
            longest=lease,
            on_end=partial(self._give_back, held),
        )

    def _give_back(self, held: LockedMessage) -> None:
        with self._lock:
            token = held.message.lock_token or ""
            if self._held.get(token) is held and held.deadline <= time.monotonic():
                self._lose([token])
                with self._translated(f"give back message {held.message.id} to"):
                    self._receiver().abandon_message(held.received)

    def _renew_lock(self, held: LockedMessage) -> float | None:
        """In how many seconds the lock ends; None when the message is settled."""
        token = held.message.lock_token or ""
        with self._lock:
            if self._held.get(token) is not held:
                return None
            try:
                with self._translated(f"renew the lock on message {held.message.id} of"):
                    return sdk.seconds_until(self._receiver().renew_message_lock(held.received))
            except LeaseLostError:
                self._lose([token])
                raise

    def _hand_out(self, received: ServiceBusReceivedMessage) -> Message | None:
        """The message, in the caller's hands; None when it is a dead letter by now."""
        token = str(received.lock_token)
        try:
            message = envelope.unpack(received, self.name, lock_token=token)
        except UnreadableMessageError as error:
            message = envelope.unpack(received, self.name, lock_token=token, raw=True)
            self._dead_letter(LockedMessage(received, message, 0.0), contract.UNREADABLE, str(error))
            return None
        held = LockedMessage(received, message, 0.0)
        limit = self._options.max_deliveries
        if limit and message.delivery_count > limit:
            self._dead_letter(held, contract.CRASHED, crash_text(limit))
            return None
        self._held[token] = held
        self._keep(held, self._options.ack_wait)
        return message

    def _dead_letter(self, held: LockedMessage, reason: str, description: str | None) -> None:
        with self._settling("dead-letter", held):
            self._receiver().dead_letter_message(held.received, reason=reason, error_description=description)
        log.warning("message %s of store %r is dead: %s", held.message.id, self.name, reason)

    @contextmanager
    def _settling(self, doing: str, held: LockedMessage) -> Iterator[None]:
        """The message is let go of when the service has confirmed its settlement, or has it no more."""
        token = held.message.lock_token or ""
        try:
            with self._translated(f"{doing} message {held.message.id} of"):
                yield
        except LeaseLostError:
            self._lose([token])
            raise
        self._held.pop(token, None)
        self._leases.forget(token)

    def _lose(self, tokens: Sequence[str]) -> None:
        for token in tokens:
            held = self._held.pop(token, None)
            self._leases.forget(token)
            if held is not None:
                for name in (token, held.message.id):
                    self._lost[name] = None
                    self._lost.move_to_end(name)
        while len(self._lost) > _REMEMBERED:
            self._lost.popitem(last=False)

    def _find(self, message: str | Message) -> LockedMessage:
        token = message.lock_token or "" if isinstance(message, Message) else self._token_of(message)
        held = self._held.get(token)
        message_id = message.id if isinstance(message, Message) else message
        if held is not None and held.deadline > time.monotonic():
            return held
        if held is not None or token in self._lost or message_id in self._lost:
            raise LeaseLostError(
                f"the lease on message {message_id} of store {self.name!r} ran out, or is another process's"
            )
        raise NotInFlightError(
            f"message {message_id} was not retrieved from store {self.name!r} by this consumer, or is finished"
        )

    def _token_of(self, message_id: str) -> str:
        return next((token for token, held in reversed(self._held.items()) if held.message.id == message_id), "")

    # -- inside ------------------------------------------------------------------------------------------------

    def _look(self, received: ServiceBusReceivedMessage, *, dead: bool) -> Message:
        source = self.name if dead else None
        try:
            return envelope.unpack(received, self.name, source=source)
        except UnreadableMessageError:
            return envelope.unpack(received, self.name, source=source, raw=True)

    def _receiver(self, *, dead: bool = False) -> ServiceBusReceiver:
        if dead not in self._receivers:
            path = self._options.name
            if self._options.subscription is not None:
                path = f"{path}/subscriptions/{self._options.subscription}"
            options = {"sub_queue": ServiceBusSubQueue.DEAD_LETTER} if dead else {}
            receiver = sdk.receiver_for(self._client, path, **options)
            try:
                # Before the first receive, whose time would otherwise have to do for connecting too.
                receiver.__enter__()
            except BaseException:
                receiver.close()
                raise
            self._receivers[dead] = receiver
            if not dead:
                self._receiving = sdk.Receiving(receiver)
        return self._receivers[dead]

    def _translated(self, doing: str) -> Any:
        return sdk.translated(f"{doing} store {self.name!r}")
