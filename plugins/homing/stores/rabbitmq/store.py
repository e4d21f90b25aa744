"""RabbitStore: messages in RabbitMQ queues."""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

from homing import store as contract
from homing.errors import StoreError, TooLargeError, UnreadableMessageError
from homing.failure import crash_text
from homing.invocation.fork_safety import start_over_after_fork
from homing.lease_renewer import LeaseRenewer
from homing.message import AVAILABLE, DEAD, LEASED, SCHEDULED, Message
from homing.portions import text_bytes
from homing.retry import doubled
from homing.size_limit import SizeLimit
from homing.store import BatchLease
from homing.stores.bulk import BulkStore
from homing.stores.rabbitmq import envelope
from homing.stores.rabbitmq.consumer import Consumer, HeldMessage
from homing.stores.rabbitmq.envelope import Incoming, Outgoing
from homing.stores.rabbitmq.options import CLASSIC, RabbitOptions
from homing.stores.rabbitmq.publisher import Publisher
from homing.stores.rabbitmq.topology import dead_queue
from homing.stores.validation import as_message, check_claim, written_texts

log = logging.getLogger(__name__)

# With messages sent ahead, one that came back to the queue need not have been in a caller's hands.
_PREFETCH_ALLOWANCE = 10
# Leases and waits after the first are up to so much longer.
_SPREAD = 0.1
# Clocks differ a little: what is due so soon, in seconds, is due.
_EARLY = 1.0
# All that is written on a message goes into one frame of 128 KiB; a dead letter has its explanation there too.
_MOST_BESIDE, _MOST_BESIDE_DEAD = 48 * 2**10, 112 * 2**10


class RabbitStore(BulkStore):
    """Messages in a durable queue of RabbitMQ, a quorum queue unless `queue_type=classic`.

    `store` returns when the broker has confirmed the message. `store_many` checks and encodes everything before it
    sends anything, keeps up to a thousand confirms in flight and returns when all have come. AMQP has no atomic
    publish of many: when the connection breaks half-way, PartlyStoredError tells which are confirmed; of the others
    it is not known, and storing them again under the same ids is the way on, since a duplicate has the same id.

    A lease lasts `ack_wait` seconds, doubled with each delivery up to `max_ack_wait`. It is kept by this object: when
    it runs out, when the connection breaks or the process dies, the message goes back to the queue, and settling it
    raises LeaseLostError. Acknowledgements are not answered by the broker; one that was on its way when the
    connection broke may have been lost, and the message comes again. With `prefetch` above 1 they are sent in groups.

    Releasing stores the message anew at the end of the queue, after `backoff` seconds where that is set, and then
    acknowledges the old one; dead-lettering does the same into the queue `<store>.dead`, which can be opened as a
    store of that name. Between the two steps a crash leaves two, never none.
    """

    features = contract.STORE_KINDS["rabbitmq"].features

    def __init__(self, parameters: Any, options: RabbitOptions) -> None:
        self.name = options.name
        self._parameters = parameters
        self._options = options
        self._publisher = Publisher(parameters, options)
        self._consumer = Consumer(parameters, options)
        self._connections: LeaseRenewer | None = None
        self._dead_queue = dead_queue(self.name)
        self._holds_the_dead = self._dead_queue == self.name
        start_over_after_fork(self)

    @property
    def max_message_bytes(self) -> int:
        return self._options.max_message_bytes

    def start_over(self) -> None:
        """In a forked process, which opens connections of its own. What was retrieved before is the parent's to settle:
        here that raises LeaseLostError."""
        self._connections = None
        self._publisher.link.start_over()
        self._consumer.start_over()

    # -- the three verbs ---------------------------------------------------------------------------------------

    def retrieve(self) -> Message | None:
        self._keep()
        with self._consumer.link.lock:
            while (delivery := self._consumer.next()) is not None:
                try:
                    message = self._hand_out(delivery)
                except BaseException:
                    self._consumer.put_back(delivery)
                    raise
                if message is not None:
                    return message
        return None

    def acknowledge(self, message: str | Message, success: bool = True, *, transaction: Any = None) -> None:
        self._refuse_transaction(transaction)
        with self._consumer.link.lock:
            held = self._find(message)
            if success:
                self._consumer.finish(held)
            else:
                self._replace(held, self._released(held.delivery))

    def close(self) -> None:
        """Ends both connections; what was retrieved and not settled goes back to the queue at once."""
        connections, self._connections = self._connections, None
        if connections is not None:
            connections.close()
        with self._consumer.link.lock:
            self._consumer.give_back_all()
            self._consumer.link.close()
            self._consumer.drop_lost()
        with self._publisher.link.lock:
            self._publisher.link.close()

    # -- many at a time ----------------------------------------------------------------------------------------

    def store_many(self, contents: Iterable[Any], *, transaction: Any = None) -> list[str]:
        self._refuse_transaction(transaction)
        now, queue = time.time(), self.name
        messages = [as_message(content) for content in contents]
        for message in messages:
            # A dead letter keeps its session and priority from another store: dead letters are not ordered.
            if (message.session_id is not None or message.priority) and message.dead_letter_reason is None:
                raise self._lacks(contract.PRIORITY if message.session_id is None else contract.SESSIONS)
        outgoing = [envelope.pack(message, queue, now) for message in messages]
        for message, packed in zip(messages, outgoing, strict=True):
            self._refuse_large(message, packed)
        if outgoing:
            self._keep()
            self._publisher.publish(outgoing)
        return [packed.message_id for packed in outgoing]

    def renew(self, held: BatchLease | Message | Sequence[Message], lease: float) -> None:
        if isinstance(held, BatchLease):
            raise self._lacks(contract.CLAIM)
        check_claim(1, lease)
        messages = [held] if isinstance(held, Message) else held
        with self._consumer.link.lock:
            found = [self._find(message) for message in messages]
            for each in found:
                self._consumer.extend(each, lease)

    # -- other ends, and looking -------------------------------------------------------------------------------

    def dead_letter(self, message: str | Message, *, reason: str, description: str | None = None) -> None:
        with self._consumer.link.lock:
            held = self._find(message)
            self._replace(held, self._dead(held.delivery, reason, description))

    def postpone(self, message: Message, seconds: float, *, attempts: int) -> bool:
        with self._consumer.link.lock:
            held = self._find(message)
            self._replace(held, self._postponed(held.delivery, seconds, attempts))
        return True

    def lengths(self) -> dict[str, int]:
        """How many messages are ready, waiting and dead at the broker, and how many this object holds.

        Not `count`: AMQP does not tell what other consumers hold, nor what is acknowledged.
        """
        self._keep()
        return self._lengths(self._publisher)

    def probe(self) -> dict[str, int]:
        """By a connection of its own, on which no queue is made; raises StoreError where the store has none yet."""
        publisher = Publisher(self._parameters, self._options, only_looks=True)
        try:
            if publisher.has_queue(self.name):
                return self._lengths(publisher)
            raise StoreError(
                f"the server answers, and has no queue of store {self.name!r}: the first use of the store makes it"
            )
        finally:
            with publisher.link.lock:
                publisher.link.close()

    def _lengths(self, publisher: Publisher) -> dict[str, int]:
        with self._consumer.link.lock:
            leased = self._consumer.held_count()
        return {
            AVAILABLE: publisher.length(self.name),
            LEASED: leased,
            SCHEDULED: publisher.waiting(),
            DEAD: publisher.length(self._dead_queue),
        }

    def tend(self) -> None:
        """Keeps the connections alive and takes back leases that ran out; a thread of this store's calls it."""
        with self._consumer.link.lock:
            self._consumer.tend()
        with self._publisher.link.lock:
            self._publisher.link.poll()

    # -- one delivery ------------------------------------------------------------------------------------------

    def _hand_out(self, delivery: Incoming) -> Message | None:
        """The message, in the caller's hands; None when it had to go elsewhere, and is there now."""
        token = self._consumer.token(delivery)
        try:
            message = envelope.unpack(delivery, token)
            elsewhere = None if self._holds_the_dead else self._detour(delivery, message)
        except UnreadableMessageError as error:
            if self._holds_the_dead:
                message, elsewhere = envelope.unpack_raw(delivery, token), None
            else:
                elsewhere = self._dead(delivery, contract.UNREADABLE, str(error))
        if elsewhere is None:
            self._consumer.hold(delivery, token, self._doubled(self._options.ack_wait, message.delivery_count))
            return message
        self._publisher.publish([elsewhere])
        self._consumer.discard(delivery)
        return None

    def _detour(self, delivery: Incoming, message: Message) -> Outgoing | None:
        """Where a message has to go instead of to the caller; None when it may be handed out."""
        if delivery.plain:
            return None
        now, options = time.time(), self._options
        due = envelope.due_at(delivery)
        if due > now + _EARLY:
            again = self._once_more(delivery, crashes=0)
            return envelope.delayed(again, self.name, due, now)
        expiry = envelope.expires_at(message)
        if expiry is not None and expiry <= now:
            return self._dead(delivery, contract.EXPIRED, "it was due for longer than its time to live")
        crashes = delivery.number(envelope.CRASHES) + delivery.returns
        if crashes >= options.max_deliveries * (1 if options.prefetch == 1 else _PREFETCH_ALLOWANCE):
            return self._dead(delivery, contract.CRASHED, crash_text(crashes))
        if options.queue_type == CLASSIC and delivery.redelivered:
            # A classic queue does not count: the message does, and goes round once more.
            return self._once_more(delivery, crashes=crashes)
        return None

    def _once_more(self, delivery: Incoming, *, crashes: int) -> Outgoing:
        """As if it had not been handed out this time."""
        attempts, deliveries = delivery.number(contract.ATTEMPTS), delivery.deliveries - 1
        return envelope.repack(delivery, self.name, deliveries=deliveries, crashes=crashes, attempts=attempts)

    def _released(self, delivery: Incoming) -> Outgoing:
        deliveries = delivery.deliveries
        crashes = delivery.number(envelope.CRASHES) + delivery.returns
        packed = envelope.repack(delivery, self.name, deliveries=deliveries, crashes=crashes)
        if not self._options.backoff:
            return packed
        return envelope.waiting(packed, self.name, self._doubled(self._options.backoff, deliveries))

    def _postponed(self, delivery: Incoming, seconds: float, attempts: int) -> Outgoing:
        crashes = delivery.number(envelope.CRASHES) + delivery.returns
        # As many deliveries as crashes: a higher count would look as if it had come back unsettled.
        packed = envelope.repack(delivery, self.name, deliveries=crashes, crashes=crashes, attempts=attempts)
        return envelope.waiting(packed, self.name, seconds)

    def _dead(self, delivery: Incoming, reason: str, description: str | None) -> Outgoing:
        deliveries = delivery.deliveries
        packed = envelope.repack(delivery, self._dead_queue, deliveries=deliveries, crashes=0)
        log.warning("message %s of store %r is dead: %s", delivery.id, self.name, reason)
        return envelope.dead_lettered(packed, reason, description, self.name)

    def _replace(self, held: HeldMessage, packed: Outgoing) -> None:
        """Stores the next copy of a message before this one is acknowledged."""
        held.busy = True
        try:
            self._publisher.publish([packed])
        finally:
            held.busy = False
        self._consumer.finish(held)

    def _find(self, message: str | Message) -> HeldMessage:
        if isinstance(message, str):
            return self._consumer.held(message, None)
        return self._consumer.held(message.id, message.lock_token or "")

    def _doubled(self, seconds: float, deliveries: int) -> float:
        return doubled(seconds, deliveries, most=self._options.max_ack_wait, jitter=_SPREAD)

    def _keep(self) -> None:
        """Keeps the connections alive, as long as this object exists."""
        if self._connections is not None:
            return
        self._connections = LeaseRenewer(f"homing-rabbitmq-{self.name}")
        interval, this = min(1.0, self._options.ack_wait / 4), weakref.ref(self)

        def tend() -> float | None:
            store = this()
            if store is None:
                return None
            store.tend()
            return 3 * interval

        self._connections.keep(self.name, f"the connections of store {self.name!r}", tend, lasts=3 * interval)

    def _refuse_large(self, message: Message, packed: Outgoing) -> None:
        most = self._options.max_message_bytes
        # RabbitMQ 4's default limit; who raises max_message_bytes here has raised the broker's limit too.
        limit = SizeLimit(most, max(4 * most, 16 * 2**20), "the broker's max_message_size, at four max_message_bytes,")
        texts = written_texts(message, packed.body.decode())
        limit.check(self.name, message.id, message.content, texts)
        beside = sum(text_bytes(text) for name, text in texts.items() if name != "message")
        most_beside = _MOST_BESIDE if message.dead_letter_reason is None else _MOST_BESIDE_DEAD
        if beside > most_beside:
            raise TooLargeError(
                f"message {message.id} is too large for store {self.name!r}: its headers and properties have {beside} "
                f"bytes, and AMQP has room for {most_beside}; nothing was stored. Put them into the content"
            )
