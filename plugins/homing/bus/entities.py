"""Queues, topics and subscriptions: their names and properties. Durations are seconds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, TypeVar

from msgspec import Meta

from homing.constraints import AtLeastOne, Positive, check_fields
from homing.errors import ConfigurationError

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,98}[A-Za-z0-9_])?")
_SUBSCRIPTION = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,48}[A-Za-z0-9_])?")


@dataclass(frozen=True)
class Receivable:
    """Properties of an entity that can be received from: a queue or a subscription."""

    #: How long a received message is locked.
    lock_duration: Annotated[float, Meta(ge=0.1, le=300)] = 60.0
    #: How often a message is handed out before it becomes a dead letter.
    max_delivery_count: AtLeastOne = 10
    #: The longest a message lives; None: as long as its own time_to_live says.
    default_message_time_to_live: Positive | None = None
    #: Whether an expired message becomes a dead letter; otherwise it is dropped.
    dead_lettering_on_message_expiration: bool = True
    #: Whether messages are received session by session.
    requires_session: bool = False
    #: The queue or topic that all messages are forwarded to.
    forward_to: str | None = None

    def _check_forwarding(self) -> None:
        if self.forward_to is not None:
            check_name(self.forward_to)


@dataclass(frozen=True)
class Sendable:
    """Properties of an entity that can be sent to: a queue or a topic."""

    #: Whether a message_id that was seen within the window is refused.
    requires_duplicate_detection: bool = False
    duplicate_detection_window: Positive = 600.0
    #: The size limit of a message, and of a batch, in bytes.
    max_message_size: AtLeastOne = 256 * 1024


@dataclass(frozen=True, kw_only=True)
class Queue(Receivable, Sendable):
    name: str

    def __post_init__(self) -> None:
        check_name(self.name)
        check_fields(self)
        self._check_forwarding()

    @property
    def path(self) -> str:
        return self.name


@dataclass(frozen=True, kw_only=True)
class Topic(Sendable):
    name: str
    default_message_time_to_live: Positive | None = None

    def __post_init__(self) -> None:
        check_name(self.name)
        check_fields(self)

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
        check_fields(self)
        self._check_forwarding()

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
