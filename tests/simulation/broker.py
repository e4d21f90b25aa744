"""A broker as intake sees one: it hands out messages until they are acknowledged, and again when a connection ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from homing.errors import NotInFlightError, StoreUnavailableError
from homing.message import Message
from homing.store import DEAD_LETTER, Store
from tests.simulation.databases import AWAY

#: How often a message may come back before it is put aside, as RabbitMQ's quorum queues do.
MOST_RETURNS = 5


@dataclass
class Queue:
    """What the broker keeps. `dead`: with the reason it was put aside for."""

    waiting: list[Message] = field(default_factory=list)
    dead: list[tuple[Message, str]] = field(default_factory=list)
    connections: list[Connection] = field(default_factory=list)

    def publish(self, message: Message) -> None:
        self.waiting.append(message)

    def everything(self) -> list[Message]:
        held = [message for connection in self.connections for message in connection.held.values()]
        return [*self.waiting, *held, *(message for message, _ in self.dead)]

    def start_over(self) -> None:
        self.waiting, self.dead, self.connections = [], [], []


class Connection(Store):
    """One consumer's connection. Whatever ends it, what it held goes back."""

    features = frozenset({DEAD_LETTER})

    def __init__(self, queue: Queue, pause: Callable[[str], str], owner: Any) -> None:
        self.name = "broker"
        self.owner = owner
        self._queue, self._pause = queue, pause
        self.held: dict[int, Message] = {}
        self._tags = 0
        queue.connections.append(self)

    def _ask(self, what: str) -> None:
        if self._pause(f"broker: {what}") == AWAY:
            self.lost()
            raise StoreUnavailableError("the broker is away")
        if self not in self._queue.connections:
            raise StoreUnavailableError("the connection to the broker is gone")

    def store(self, content: Any, **_: Any) -> str:
        raise NotImplementedError

    def retrieve(self) -> Message | None:
        self._ask("retrieve")
        if not self._queue.waiting:
            return None
        self._tags += 1
        message = replace(self._queue.waiting.pop(0), lock_token=str(self._tags))
        self.held[self._tags] = message
        return message

    def acknowledge(self, message: str | Message, success: bool = True, *, transaction: Any = None) -> None:
        self._ask("acknowledge" if success else "release")
        held = self._pop(message)
        if not success:
            self._queue.waiting.append(replace(held, lock_token=None))

    def dead_letter(self, message: str | Message, *, reason: str, description: str | None = None) -> None:
        self._ask("dead-letter")
        self._queue.dead.append((self._pop(message), reason))

    def close(self) -> None:
        if self in self._queue.connections:
            self.lost()

    def lost(self) -> None:
        """The connection has ended: what it held comes again, and each time is counted."""
        self._queue.connections.remove(self)
        for message in self.held.values():
            returned = replace(message, lock_token=None, delivery_count=message.delivery_count + 1)
            if returned.delivery_count > MOST_RETURNS:
                self._queue.dead.append((returned, "delivery limit"))
            else:
                self._queue.waiting.append(returned)
        self.held.clear()

    def _pop(self, message: str | Message) -> Message:
        assert isinstance(message, Message)
        tag = int(message.lock_token or 0)
        if tag not in self.held:
            raise NotInFlightError(f"message {message.id} is not in flight")
        return self.held.pop(tag)
