"""Between a Message and its row."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

import sqlalchemy as sa

from homing import message as m
from homing.errors import UnstorableContentError
from homing.message import Message
from homing.stores.sql.database import NANOSECONDS

_MAX_ID = 255
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)

#: What `read` takes, in this order.
READ = (
    "id", "message", "encoding", "content_type", "headers", "correlation_id", "session_id", "partition_key", "subject",
    "recipient", "reply_to", "priority", "time_to_live", "sequence", "epoch", "time_created", "time_scheduled",
    "dead_letter_reason", "dead_letter_description", "dead_letter_source",
)  # fmt: skip


def to_row(message: Message, now: int, *, partitions: int = 0, columns: Sequence[str] = ()) -> dict[str, Any]:
    """The values to insert; raises UnstorableContentError for what cannot be stored."""
    if not message.id or len(message.id) > _MAX_ID:
        raise UnstorableContentError(f"a message id has 1 to {_MAX_ID} characters, not {len(message.id)}")
    encoded = m.encode(message.content)
    due = now if message.scheduled_at is None else to_nanoseconds(message.scheduled_at)
    row = {
        "id": message.id,
        "time_scheduled": due,
        "time_next": max(due, 1),
        "time_created": now,
        "message": encoded.body,
        "encoding": encoded.encoding,
        "dead_letter_reason": message.dead_letter_reason,
        "dead_letter_description": message.dead_letter_description,
        "dead_letter_source": message.dead_letter_source,
        **envelope(message),
    }
    if partitions:
        row["bucket"] = bucket_of(message, partitions)
    for name in columns:
        row[name] = message.headers.get(name)
    return row


def envelope(message: Message) -> dict[str, Any]:
    """The columns of what is written on a message from outside, its content left out."""
    texts = {
        "content_type": message.content_type,
        "correlation_id": message.correlation_id,
        "session_id": message.session_id,
        "partition_key": message.partition_key,
        "subject": message.subject,
        "recipient": message.to,
        "reply_to": message.reply_to,
    }
    for name, text in (("id", message.id), *texts.items()):
        if text is not None:
            _refuse_bad_text(name, text)
    return {
        **texts,
        "priority": message.priority,
        "headers": m.encode_headers(message.headers),
        "time_to_live": None if message.time_to_live is None else _span(message.time_to_live),
    }


def bucket_of(message: Message, partitions: int) -> int:
    """The partition a message belongs to: the same for the same key, else session, else id."""
    key = message.partition_key or message.session_id or message.id
    return zlib.crc32(key.encode("utf-8")) % partitions


def read(row: Sequence[Any], lock_token: str | None, delivery_count: int | None = None) -> Message:
    """The Message in these values of READ; raises UnreadableMessageError when they cannot be decoded."""
    (
        message_id, body, encoding, content_type, headers, correlation_id, session_id, partition_key, subject, to,
        reply_to, priority, time_to_live, sequence, epoch, created, scheduled, reason, description, source,
    ) = row  # fmt: skip
    return Message(
        message_id,
        m.decode(encoding, body, message_id),
        content_type,
        m.decode_headers(headers, message_id) if headers else {},
        correlation_id,
        session_id,
        partition_key,
        subject,
        to,
        reply_to,
        priority,
        None if time_to_live is None else timedelta(microseconds=time_to_live // 1000),
        sequence,
        lock_token,
        epoch if delivery_count is None else delivery_count,
        from_nanoseconds(created),
        from_nanoseconds(scheduled) if scheduled > created else None,
        reason,
        description,
        source,
        m.AVAILABLE if lock_token is None else m.LEASED,
    )


def to_message(row: Mapping[str, Any]) -> Message:
    """The Message this row holds; raises UnreadableMessageError when its content or headers cannot be decoded."""
    return read([row[name] for name in READ], row["lock_token"])


def state_of(table: sa.Table, now: int) -> sa.Label[str]:
    """The state of a row, as an expression."""
    c = table.c
    return sa.case(
        (c.time_acked.is_not(None), m.ACKNOWLEDGED),
        (c.time_dead.is_not(None), m.DEAD),
        (c.time_next.is_(None), m.DEFERRED),
        ((c.time_next == 0) & (c.time_scheduled > now), m.SCHEDULED),
        (c.time_next <= now, m.AVAILABLE),
        (c.lock_token.is_not(None), m.LEASED),
        else_=m.SCHEDULED,
    ).label("state")


def from_nanoseconds(value: int) -> datetime:
    return _EPOCH + timedelta(microseconds=value // 1000)


def to_nanoseconds(value: datetime) -> int:
    """Raises UnstorableContentError for a time without a time zone."""
    if value.tzinfo is None:
        raise UnstorableContentError(f"times are aware: {value} has no time zone")
    return _span(value - _EPOCH)


def _span(value: timedelta) -> int:
    return (value.days * 86_400 + value.seconds) * NANOSECONDS + value.microseconds * 1000


def _refuse_bad_text(name: str, text: str) -> None:
    if len(text) > _MAX_ID:
        raise UnstorableContentError(f"a message's {name} has at most {_MAX_ID} characters, not {len(text)}")
    if "\0" in text or not m.is_unicode(text):
        raise UnstorableContentError(
            f"a message's {name} holds a NUL or a lone surrogate, which not every store can keep"
        )
