"""Receiving: what the broker handed to this consumer, who holds it, until when, and what is settled."""

from __future__ import annotations

import math
import time
from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pika import spec

from homing.errors import LeaseLostError, NotInFlightError
from homing.ids import new_id
from homing.stores.rabbitmq.connection import Link
from homing.stores.rabbitmq.envelope import Incoming
from homing.stores.rabbitmq.options import CLASSIC, RabbitOptions
from homing.stores.rabbitmq.topology import declare_store

_REMEMBERED = 10_000
_ON_ITS_WAY = 0.02  # seconds within which what the broker sends ahead arrives


@dataclass(eq=False, slots=True)
class HeldMessage:
    """A message in a caller's hands until `deadline`, in monotonic seconds; `busy` while it is being settled."""

    delivery: Incoming
    lock_token: str
    deadline: float
    busy: bool = False


class Consumer:
    """A connection of its own for receiving.

    With `prefetch` 1 every message is asked for by itself. Above that the broker sends ahead: up to so many
    messages are unsettled here at a time, and acknowledgements are sent in groups. Every method is to be called
    with `link.lock` held.
    """

    def __init__(self, parameters: Any, options: RabbitOptions) -> None:
        self._options = options
        self.link = Link(parameters, options.name, timeout=options.timeout, prepare=self._prepare)
        self._token = new_id()
        self._epoch = 0
        self._arrived: deque[Incoming] = deque()
        self._unsettled: dict[int, None] = {}  # the tags the broker waits for, in order
        self._acknowledged: set[int] = set()  # those of them to be acknowledged with the next group
        self._group = max(1, options.prefetch // 4)
        self._held: dict[str, HeldMessage] = {}
        self._tokens: dict[str, str] = {}
        self._lost: OrderedDict[str, None] = OrderedDict()
        self._earliest = math.inf  # no lease ends before
        self._consumer_tag: str | None = None
        self._last_asked = 0.0
        self._got: list[Incoming | None] = []

    # -- receiving ---------------------------------------------------------------------------------------------

    def next(self) -> Incoming | None:
        """The next message, not leased yet; None if the queue has nothing ready."""
        self._last_asked = now = time.monotonic()
        if now >= self._earliest:
            self.take_back_overdue()
        if not self._arrived or not self.link.is_open:
            self.drop_lost()
            self.link.open()
            if self._options.prefetch > 1:
                self._stream()
                self.link.poll()  # what is here already, before acknowledgements go out: they go in larger groups so
                if not self._arrived:
                    self._send_acknowledged()
                    if len(self._unsettled) < self._options.prefetch:
                        self.link.wait(self._has_arrived, _ON_ITS_WAY)
            if not self._arrived:
                self._ask()
        return self._arrived.popleft() if self._arrived else None

    def _has_arrived(self) -> bool:
        return bool(self._arrived)

    def put_back(self, delivery: Incoming) -> None:
        """The caller could not use it after all: it is the next again."""
        self._arrived.appendleft(delivery)

    def token(self, delivery: Incoming) -> str:
        """What fences this delivery: no other consumer, and no other connection, ever gets the same."""
        return f"{self._token}.{self._epoch}.{delivery.tag}"

    def hold(self, delivery: Incoming, token: str, lease: float) -> None:
        """Puts a delivery into the caller's hands for so many seconds."""
        deadline = time.monotonic() + lease
        self._held[token] = HeldMessage(delivery, token, deadline)
        self._tokens[delivery.id] = token
        self._earliest = min(self._earliest, deadline)

    def extend(self, held: HeldMessage, lease: float) -> None:
        """Leaves it in the caller's hands for so many seconds from now."""
        held.deadline = time.monotonic() + lease
        self._earliest = min(self._earliest, held.deadline)

    def _stream(self) -> None:
        if self._consumer_tag is None:
            queue = self._options.name
            self.link.call(self.link.channel.basic_qos, prefetch_count=self._options.prefetch)
            self._consumer_tag = self.link.channel.basic_consume(queue, self._on_delivery)

    def _ask(self) -> None:
        """Asks for one message; what the broker had sent ahead comes before it."""
        self._got.clear()
        self.link.channel.basic_get(self._options.name, self._on_got)
        self.link.run(lambda: bool(self._got))
        if self._got[0] is not None:
            self._arrived.append(self._got[0])

    def _on_delivery(self, _channel: Any, method: Any, properties: Any, body: bytes) -> None:
        self._unsettled[method.delivery_tag] = None
        self._arrived.append(self._incoming(method, properties, body))

    def _on_got(self, _channel: Any, method: Any, properties: Any, body: bytes) -> None:
        self._unsettled[method.delivery_tag] = None
        self._got.append(self._incoming(method, properties, body))

    def _incoming(self, method: Any, properties: Any, body: bytes) -> Incoming:
        counted = self._options.queue_type != CLASSIC
        return Incoming(method.delivery_tag, method.redelivered, properties, body, counted=counted)

    def _on_nothing(self, _frame: Any) -> None:
        self._got.append(None)

    def _on_cancelled(self, _frame: Any) -> None:
        """The broker ended the stream, as it does when the queue is deleted: the next call starts over."""
        self._consumer_tag = None

    # -- settling ----------------------------------------------------------------------------------------------

    def held(self, message_id: str, token: str | None) -> HeldMessage:
        """What is held under this token, or, without one, under this id; raises when the lease is not there."""
        self.drop_lost()
        self.take_back_overdue()
        token = self._tokens.get(message_id) if token is None else token
        found = self._held.get(token) if token is not None else None
        if found is not None and not found.busy:
            return found
        name = self._options.name
        if message_id in self._lost if token is None else token in self._lost:
            raise LeaseLostError(
                f"the lease on message {message_id} in store {name!r} ran out, went with its connection or is another "
                "process's; it is delivered again unless that one settles it"
            )
        raise NotInFlightError(
            f"message {message_id} was not retrieved from store {name!r} by this consumer, or is finished"
        )

    def finish(self, held: HeldMessage) -> None:
        """Acknowledges what is held; raises LeaseLostError when the connection it came through is gone."""
        if self._held.get(held.lock_token) is not held or not self.link.is_open:
            self.drop_lost()
            raise LeaseLostError(
                f"message {held.delivery.id} in store {self._options.name!r} is delivered again: its connection is lost"
            )
        self._forget(held)
        self.discard(held.delivery)

    def discard(self, delivery: Incoming) -> None:
        """Acknowledges a delivery that no caller holds."""
        self._acknowledged.add(delivery.tag)
        if len(self._acknowledged) >= self._group:
            self._send_acknowledged()
            self.link.poll()

    def _send_acknowledged(self) -> None:
        """Sends what is to be acknowledged: all from the oldest without a gap at once, the others one by one."""
        pending = self._acknowledged
        if not pending:
            return
        channel, last = self.link.channel, 0
        for tag in self._unsettled:
            if tag not in pending:
                break
            last = tag
        if last:
            channel.basic_ack(last, multiple=True)
            for tag in [tag for tag in pending if tag <= last]:
                del self._unsettled[tag]
                pending.discard(tag)
        for tag in sorted(pending):
            channel.basic_ack(tag)
            del self._unsettled[tag]
        pending.clear()

    def _forget(self, held: HeldMessage) -> None:
        self._held.pop(held.lock_token, None)
        if self._tokens.get(held.delivery.id) == held.lock_token:
            del self._tokens[held.delivery.id]

    # -- time and losses ---------------------------------------------------------------------------------------

    def tend(self) -> None:
        """To be called now and then: keeps the connection alive, sends what is due, gives back what lies idle."""
        self.link.poll()
        self.drop_lost()
        if not self.link.is_open:
            return
        self.take_back_overdue()
        self._send_acknowledged()
        if self._arrived and time.monotonic() - self._last_asked > self._options.ack_wait:
            self._give_back(self._arrived)
            self._arrived.clear()
            if self._consumer_tag is not None:
                self.link.channel.basic_cancel(self._consumer_tag)
                self._consumer_tag = None
        self.link.poll()

    def take_back_overdue(self) -> None:
        """Returns to the queue whatever a caller has held for too long: the next consumer gets it."""
        now = time.monotonic()
        if now < self._earliest:
            return
        overdue = [held for held in self._held.values() if held.deadline <= now and not held.busy]
        for held in overdue:
            self._forget(held)
            self._remember_lost(held)
        # Those being settled just now are looked at again the next time.
        self._earliest = min((held.deadline for held in self._held.values()), default=math.inf)
        if overdue and self.link.is_open:
            self._give_back(held.delivery for held in overdue)
            self.link.poll()

    def drop_lost(self) -> None:
        """Forgets all that came through a connection that is gone: its tags mean nothing to the next."""
        if self.link.is_open and self.link.epoch == self._epoch:
            return
        for held in self._held.values():
            self._remember_lost(held)
        self._held.clear()
        self._tokens.clear()
        self._arrived.clear()
        self._unsettled.clear()
        self._acknowledged.clear()
        self._consumer_tag = None
        self._epoch = self.link.epoch

    def give_back_all(self) -> None:
        """Sends what is acknowledged; the end of the connection returns the rest to the queue."""
        if self.link.is_open and self.link.epoch == self._epoch:
            self._send_acknowledged()

    def start_over(self) -> None:
        """In a forked process: what is held is the parent's, whose connection it came through."""
        self.link.start_over()
        self._token = new_id()
        self.drop_lost()
        self._earliest = math.inf
        self._got = []

    def held_count(self) -> int:
        return len(self._held)

    def _give_back(self, deliveries: Iterable[Incoming]) -> None:
        for delivery in deliveries:
            self.link.channel.basic_nack(delivery.tag, requeue=True)
            del self._unsettled[delivery.tag]

    def _remember_lost(self, held: HeldMessage) -> None:
        self._lost[held.lock_token] = self._lost[held.delivery.id] = None
        while len(self._lost) > 2 * _REMEMBERED:
            self._lost.popitem(last=False)

    def _prepare(self) -> None:
        declare_store(self.link, self._options.name, self._options.queue_type)
        self.link.channel.add_callback(self._on_nothing, [spec.Basic.GetEmpty], one_shot=False)
        self.link.channel.add_on_cancel_callback(self._on_cancelled)
        self._epoch = self.link.epoch - 1  # what came through the last connection is lost
        self.drop_lost()
