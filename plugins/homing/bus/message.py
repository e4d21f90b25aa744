"""Message and MessageBatch, as senders give them and receivers get them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from homing import message as m
from homing.errors import NoSuchMessageError, UnstorableContentError
from homing.json_values import is_unicode

TEXT = "text/plain"
JSON = "application/json"
BYTE_ARRAY = "application/octet-stream"

# The states of a message at the bus.
ACTIVE = "active"
DEFERRED = "deferred"
SCHEDULED = "scheduled"

#: Property names that the bus and the stores use themselves.
RESERVED = frozenset({"homing-bus", "homing-encoding", "homing-headers", "homing-priority", "homing-partition-key"})

_MAX_ID = 128
_MAX_LIFE = 9e9  # seconds: stores count nanoseconds in 64 bits
_MAX_SEQUENCE_NUMBER = 2**63 - 1
_TEXTS = ("content_type", "message_id", "to", "reply_to", "reply_to_session_id", "label", "session_id",
          "correlation_id", "partition_key")  # fmt: skip
_SHORT = ("message_id", "session_id", "reply_to_session_id", "partition_key")  # as at the service


@dataclass(frozen=True, kw_only=True)
class Message:
    """One message of the bus: `Message(body="hello")`.

    The body is any JSON value, str or bytes, and comes back equal and of the same type. Fields after
    `application_properties` are written by the bus and ignored when sending. `time_to_live` is in seconds.
    `delivery_count` counts how often it was handed out, this time included; `lock_token` is what settling it is
    fenced by, until `locked_until`. Raises UnstorableContentError for what the bus cannot send.
    """

    body: Any
    content_type: str = ""
    message_id: str | None = None
    to: str | None = None
    reply_to: str | None = None
    reply_to_session_id: str | None = None
    label: str | None = None
    session_id: str | None = None
    correlation_id: str | None = None
    partition_key: str | None = None
    time_to_live: float | None = None
    application_properties: Mapping[str, str | int | float | bool | None] = field(default_factory=dict)
    sequence_number: int | None = None
    lock_token: str | None = None
    locked_until: datetime | None = None
    delivery_count: int = 0
    enqueued_time: datetime | None = None
    enqueued_sequence_number: int | None = None
    dead_letter_error_description: str | None = None
    dead_letter_reason: str | None = None
    dead_letter_source: str | None = None
    state: str = ACTIVE

    def __post_init__(self) -> None:
        if not self.content_type:
            usual = BYTE_ARRAY if isinstance(self.body, bytes) else TEXT if isinstance(self.body, str) else JSON
            object.__setattr__(self, "content_type", usual)
        # A copy: later changes of the caller's mapping do not change the message.
        given: Any = self.application_properties
        if not isinstance(given, Mapping):
            kind = type(given).__name__
            raise UnstorableContentError(f"application_properties must be a mapping of names to values, got a {kind}")
        object.__setattr__(self, "application_properties", dict(given))

    def check(self) -> None:
        """Raises UnstorableContentError for what the bus cannot send."""
        m.encode(self.body)
        self._check_texts()
        life = self.time_to_live
        if life is not None and not (type(life) in (int, float) and 0 < life < _MAX_LIFE):
            raise UnstorableContentError(f"time_to_live must be > 0 and < 9e9 seconds, got {life!r:.40}")
        for key, value in self.application_properties.items():
            if key in RESERVED:
                raise UnstorableContentError(
                    f"the application property name {key!r} is reserved by the bus: use another name"
                )
            if type(key) is not str or not (value is None or type(value) in (str, int, float, bool)):
                raise UnstorableContentError(
                    f"the application property {key!r:.60} is of type {type(value).__name__}: properties have texts as "
                    "names and texts, numbers, booleans or None as values"
                )
        m.encode_headers(self.application_properties)

    def _check_texts(self) -> None:
        for name in _TEXTS:
            value = getattr(self, name)
            if value is None:
                continue
            if type(value) is not str:
                raise UnstorableContentError(f"{name} must be a text, got a {type(value).__name__}")
            if "\0" in value or not is_unicode(value):
                raise UnstorableContentError(f"{name} contains a NUL or a lone surrogate, which the bus cannot send")
            if name in _SHORT and len(value) > _MAX_ID:
                raise UnstorableContentError(f"{name} must have at most {_MAX_ID} characters, got {len(value)}")
        if self.message_id == "":
            raise UnstorableContentError(f"message_id must have 1 to {_MAX_ID} characters, got 0")


@dataclass(frozen=True)
class MessageBatch:
    """Messages that are sent together, or were received together."""

    messages: Sequence[Message] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "messages", tuple(self.messages))

    @property
    def message_count(self) -> int:
        return len(self.messages)


def check_sequence_number(number: object) -> None:
    """Raises NoSuchMessageError for an impossible sequence number."""
    if type(number) is not int or not 0 < number <= _MAX_SEQUENCE_NUMBER:
        raise NoSuchMessageError(f"sequence number must be an integer >= 1, got {number!r:.40}")
