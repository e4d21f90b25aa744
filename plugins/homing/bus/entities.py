"""Queues, topics and subscriptions: their names and properties. Durations are seconds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from homing.errors import ConfigurationError

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,98}[A-Za-z0-9_])?")
_SUBSCRIPTION = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,48}[A-Za-z0-9_])?")
_MIN_LOCK = 0.1
_MAX_LOCK = 300.0


@dataclass(frozen=True)
class Receivable:
    """Properties of an entity that can be received from: a queue or a subscription."""

    #: How long a received message is locked.
    lock_duration: float = 60.0
    #: How often a message is handed out before it becomes a dead letter.
    max_delivery_count: int = 10
    #: The longest a message lives; None: as long as its own time_to_live says.
    default_message_time_to_live: float | None = None
    #: Whether an expired message becomes a dead letter; otherwise it is dropped.
    dead_lettering_on_message_expiration: bool = True
    #: Whether messages are received session by session.
    requires_session: bool = False
    #: The queue or topic that all messages are forwarded to.
    forward_to: str | None = None

    def _check_receivable(self) -> None:
        _check_positive("default_message_time_to_live", self.default_message_time_to_live)
        if not _MIN_LOCK <= self.lock_duration <= _MAX_LOCK:
            raise ConfigurationError(
                f"lock_duration must be {_MIN_LOCK} to {_MAX_LOCK:.0f} seconds, got {self.lock_duration!r}"
            )
        if type(self.max_delivery_count) is not int or self.max_delivery_count < 1:
            raise ConfigurationError(f"max_delivery_count must be an integer >= 1, got {self.max_delivery_count!r}")
        if self.forward_to is not None:
            check_name(self.forward_to)


@dataclass(frozen=True)
class Sendable:
    """Properties of an entity that can be sent to: a queue or a topic."""

    #: Whether a message_id that was seen within the window is refused.
    requires_duplicate_detection: bool = False
    duplicate_detection_window: float = 600.0
    #: The size limit of a message, and of a batch, in bytes.
    max_message_size: int = 256 * 1024

    def _check_sendable(self) -> None:
        _check_positive("duplicate_detection_window", self.duplicate_detection_window)
        _check_positive("max_message_size", self.max_message_size)


@dataclass(frozen=True, kw_only=True)
class Queue(Receivable, Sendable):
    name: str

    def __post_init__(self) -> None:
        check_name(self.name)
        self._check_receivable()
        self._check_sendable()

    @property
    def path(self) -> str:
        return self.name


@dataclass(frozen=True, kw_only=True)
class Topic(Sendable):
    name: str
    default_message_time_to_live: float | None = None

    def __post_init__(self) -> None:
        check_name(self.name)
        self._check_sendable()
        _check_positive("default_message_time_to_live", self.default_message_time_to_live)

    @property
    def path(self) -> str:
        return self.name


@dataclass(frozen=True, kw_only=True)
class Subscription(Receivable):
    topic: str
    name: str

    def __post_init__(self) -> None:
        check_name(self.topic)
        if not isinstance(self.name, str) or not _SUBSCRIPTION.fullmatch(self.name):
            raise ConfigurationError(
                f"invalid subscription name {self.name!r:.80}: use letters, digits, . - and _, at most 50 characters"
            )
        self._check_receivable()

    @property
    def path(self) -> str:
        return subscription_path(self.topic, self.name)


Entity = Queue | Topic | Subscription
AnyEntity = TypeVar("AnyEntity", Queue, Topic, Subscription)


def subscription_path(topic: str, name: str) -> str:
    return f"{topic}/subscriptions/{name}"


def check_name(name: object) -> None:
    """Raises ConfigurationError for an invalid name of a queue or topic."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or "//" in name:
        raise ConfigurationError(
            f"invalid name of a queue or topic {name!r:.80}: use letters, digits and . - _ /, at most 100 characters"
        )


def with_properties(entity: AnyEntity, properties: Mapping[str, Any]) -> AnyEntity:
    """The entity with these properties; raises ConfigurationError for one it does not have."""
    known = {field.name for field in fields(entity)} - {"name", "topic"}
    for name in properties:
        if name not in known:
            what = type(entity).__name__.lower()
            raise ConfigurationError(f"unknown {what} property {name!r}; known are {', '.join(sorted(known))}")
    return replace(entity, **properties)


def _check_positive(name: str, value: float | None) -> None:
    if value is not None and not (isinstance(value, (int, float)) and value > 0):
        raise ConfigurationError(f"{name} must be > 0, got {value!r}")
