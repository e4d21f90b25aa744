"""The interfaces behind senders, receivers and administrators, implemented by the embedded bus and by the service."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from homing.bus.entities import Entity
from homing.bus.message import Message
from homing.bus.options import ReceiveMode, RetryOptions
from homing.bus.rules import Rule
from homing.errors import ConfigurationError, NoSuchMessageError

#: Stands for a session's id: any session that has messages and no receiver.
NEXT_SESSION = "*next*"


@dataclass(frozen=True)
class ReceiveOptions:
    """The options of a receiver."""

    mode: ReceiveMode = ReceiveMode.PEEK_LOCK
    max_auto_lock_renew_duration: float = 300.0
    session_id: str | None = None
    retry: RetryOptions = field(default_factory=RetryOptions)


class SendLink(ABC):
    """Sends to one queue or topic."""

    def __init__(self, path: str) -> None:
        self._path = path

    def _not_scheduled(self, sequence_number: int) -> NoSuchMessageError:
        return NoSuchMessageError(
            f"no message is scheduled on {self._path!r} under the sequence number {sequence_number}: it was "
            "cancelled, is due already or never existed"
        )

    @abstractmethod
    def send(self, messages: Sequence[Message]) -> None:
        """Returns when all of them are durable; raises if none is."""

    @abstractmethod
    def schedule(self, message: Message, at: datetime) -> int:
        """Returns the sequence number to cancel it by."""

    @abstractmethod
    def cancel(self, sequence_number: int) -> None:
        """Raises NoSuchMessageError if no message is scheduled under this number."""

    @abstractmethod
    def close(self) -> None: ...


class ReceiveLink(ABC):
    """Receives from one queue or subscription, or from the dead letters of one. Settling is fenced by the lock."""

    def __init__(self, path: str, options: ReceiveOptions, *, dead_lettered: bool) -> None:
        self._path = path
        self._options = options
        self._dead = dead_lettered

    @abstractmethod
    def receive(self, limit: int, wait: float) -> list[Message]:
        """Returns up to `limit` messages as soon as there is one; an empty list after `wait` seconds."""

    @abstractmethod
    def complete(self, message: Message) -> None: ...

    @abstractmethod
    def abandon(self, message: Message) -> None: ...

    @abstractmethod
    def dead_letter(self, message: Message, reason: str, description: str | None) -> None: ...

    @abstractmethod
    def defer(self, message: Message) -> None: ...

    @abstractmethod
    def receive_deferred(self, sequence_number: int) -> Message:
        """Raises NoSuchMessageError if no message is deferred under this number."""

    @abstractmethod
    def renew_lock(self, message: Message) -> datetime:
        """Renews the lock; returns when it ends now."""

    def _refuse_dead(self, message: Message) -> None:
        """Raises ConfigurationError where this link receives dead letters. Deferred messages are received from the
        queue, and a dead letter is not there."""
        if self._dead:
            raise ConfigurationError(
                f"message {message.message_id} is a dead letter of {self._path!r} already: complete or abandon it"
            )

    def _not_deferred(self, sequence_number: int) -> NoSuchMessageError:
        return NoSuchMessageError(
            f"no message of {self._path!r} is deferred under the sequence number {sequence_number}"
        )

    @abstractmethod
    def close(self) -> None: ...


class Administration(ABC):
    """Makes, changes and removes entities. Paths as in `Entity.path`."""

    @abstractmethod
    def create(self, entity: Entity) -> None: ...

    @abstractmethod
    def get(self, kind: type[Entity], path: str) -> Entity: ...

    @abstractmethod
    def update(self, entity: Entity) -> None: ...

    @abstractmethod
    def delete(self, path: str) -> None: ...

    @abstractmethod
    def entities(self, kind: type[Entity], topic: str | None = None) -> list[Entity]: ...

    @abstractmethod
    def rules(self, subscription: str) -> list[Rule]: ...

    @abstractmethod
    def create_rule(self, subscription: str, rule: Rule) -> None: ...

    @abstractmethod
    def update_rule(self, subscription: str, rule: Rule) -> None: ...

    @abstractmethod
    def delete_rule(self, subscription: str, name: str) -> None: ...

    @abstractmethod
    def close(self) -> None: ...


class Broker(ABC):
    """One bus. Opening it connects to nothing."""

    @abstractmethod
    def open_sender(self, path: str, retry: RetryOptions) -> SendLink: ...

    @abstractmethod
    def open_receiver(self, path: str, options: ReceiveOptions, *, dead_lettered: bool = False) -> ReceiveLink: ...

    @abstractmethod
    def administration(self) -> Administration: ...

    @abstractmethod
    def close(self) -> None: ...
