"""Message, its states, and how content becomes text and comes back equal. No pickle, ever."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from homing.errors import UnreadableMessageError, UnstorableContentError
from homing.json_values import DEEPEST, DEEPEST_PART, copy_json, is_too_deep

Headers = Mapping[str, Any]

# The states of a message; `store.count()` has one number for each.
AVAILABLE = "available"
LEASED = "leased"
SCHEDULED = "scheduled"
DEFERRED = "deferred"
ACKNOWLEDGED = "acknowledged"
DEAD = "dead"
STATES = (AVAILABLE, LEASED, SCHEDULED, DEFERRED, ACKNOWLEDGED, DEAD)

# How a content is written down. Raw text is kept as it is, so that a message inserted by plain SQL is readable too.
TEXT = "text"
JSON = "json"
BASE64 = "base64"

_MAX_NAME = 255
_IDENTITY = re.compile("[0-9a-f]{16}")
_NAME = re.compile(rf"({_IDENTITY.pattern})-(\d{{1,19}})/(.+)", re.DOTALL)
_decode_json = msgspec.json.decode


@dataclass(frozen=True)
class Message:
    """One message as a store hands it out.

    `lock_token` is the lease it was retrieved under; settling is fenced by it. `delivery_count` counts how often
    it was handed out, this time included. Lower `priority` comes first. Times are aware and in UTC.
    """

    id: str
    content: Any
    content_type: str | None = None
    headers: Headers = field(default_factory=dict)
    correlation_id: str | None = None
    session_id: str | None = None
    partition_key: str | None = None
    subject: str | None = None
    to: str | None = None
    reply_to: str | None = None
    priority: int = 0
    time_to_live: timedelta | None = None
    sequence_number: int | None = None
    lock_token: str | None = None
    delivery_count: int = 0
    enqueued_at: datetime | None = None
    scheduled_at: datetime | None = None
    dead_letter_reason: str | None = None
    dead_letter_description: str | None = None
    dead_letter_source: str | None = None
    state: str = AVAILABLE

    @property
    def payload(self) -> Any:
        """The content, by its other name."""
        return self.content


class MessageRef(NamedTuple):
    """Which message, anywhere and for ever: the identity of the table that took it in, its number there, and the id
    that people know it by. An id may come again, and a table be made anew; the three together are of one message.

    A message of a store without tables, or with anything else written for an identity, has the identity "".
    """

    table_id: str
    sequence: int
    id: str

    @property
    def name(self) -> str:
        """The reference as one text, of no more characters than an id may have, and of one message only."""
        if not self.table_id and not _NAME.fullmatch(self.id):
            return self.id
        return f"{self.table_id}-{self.sequence}/{self.id}"[:_MAX_NAME]

    @classmethod
    def of(cls, table_id: Any, sequence: int, id: str) -> MessageRef:
        """The same of what a row says; people who write into tables may have written anything for an identity."""
        return cls(_identity(table_id), sequence, id)

    @classmethod
    def of_name(cls, name: str) -> MessageRef | None:
        """The reference that has this name, or might have; None for any other text."""
        found = _NAME.fullmatch(name)
        return None if found is None else cls(found[1], int(found[2]), found[3])


@lru_cache(maxsize=1024)
def _identity(written: Any) -> str:
    return written if isinstance(written, str) and _IDENTITY.fullmatch(written) else ""


class Encoded(NamedTuple):
    """A content written down: `encoding` is one of TEXT, JSON, BASE64."""

    encoding: str
    body: str


def encode(content: Any) -> Encoded:
    """Writes a content down so that `decode` gives it back equal and of the same type.

    Raises UnstorableContentError, with the path of the offending value, for anything but JSON, str and bytes.
    """
    if type(content) is not bytes:
        copy_json(content)
    return encode_accepted(content)


def encode_accepted(content: Any) -> Encoded:
    """The same for a content that is known to be JSON, str or bytes."""
    if type(content) is bytes:
        return Encoded(BASE64, base64.b64encode(content).decode("ascii"))
    # PostgreSQL has no NUL in its text type, so such a string travels as JSON, where it is escaped.
    if isinstance(content, str) and "\0" not in content:
        return Encoded(TEXT, content)
    return Encoded(JSON, encode_json(content, "content"))


def decode(encoding: str, body: str, message_id: str = "?") -> Any:
    """Gives back what `encode` wrote down; raises UnreadableMessageError where that is not possible."""
    try:
        if encoding == JSON:
            value = _decode_json(body)
            # What others wrote into a table may have more levels than could be kept when it fails.
            if body.count("[") + body.count("{") > DEEPEST and is_too_deep(value):
                raise UnreadableMessageError(f"message {message_id} is nested in more than {DEEPEST} levels")
            return value
        if encoding == TEXT:
            return body
        if encoding == BASE64:
            return base64.b64decode(body, validate=True)
    except (msgspec.MsgspecError, binascii.Error, RecursionError, TypeError, ValueError) as error:
        raise UnreadableMessageError(f"message {message_id} is not readable as {encoding}: {error}") from error
    raise UnreadableMessageError(
        f"message {message_id} has the unknown encoding {encoding!r}; known are {TEXT}, {JSON} and {BASE64}"
    )


def encode_json(value: Any, what: str = "value") -> str:
    """JSON text of a value known to be JSON; raises UnstorableContentError for a number of thousands of digits."""
    try:
        return msgspec.json.encode(value).decode("utf-8")
    except (TypeError, ValueError) as error:
        raise UnstorableContentError(
            f"cannot store this: {what} holds a number or another value that cannot be written: {error}"
        ) from error


def encode_headers(headers: Headers | None) -> str | None:
    """Headers as JSON text; None for none. Raises UnstorableContentError for what JSON cannot say."""
    if not headers:
        return None
    return encode_json(copy_json(dict(headers), "headers", wanted="JSON values", levels=DEEPEST_PART), "headers")


def decode_headers(text: str | None, message_id: str = "?") -> dict[str, Any]:
    """The headers that `encode_headers` wrote down."""
    if not text:
        return {}
    headers = decode(JSON, text, message_id)
    if not isinstance(headers, dict):
        raise UnreadableMessageError(f"message {message_id} has headers that are not a JSON object")
    return headers
