"""Between a Message and its row."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from typing import Any

import sqlalchemy as sa

from homing import message as m
from homing.errors import UnstorableContentError
from homing.message import Message
from homing.stores.sql.database import NANOSECONDS

_MAX_ID = 255


def to_row(message: Message, now: int) -> dict[str, Any]:
    """The values to insert; raises UnstorableContentError for what cannot be stored."""
    if not message.id or len(message.id) > _MAX_ID:
        raise UnstorableContentError(f"a message id has 1 to {_MAX_ID} characters, not {len(message.id)}")
    encoded = m.encode(message.content)
    due = now if message.scheduled_at is None else _to_nanoseconds(message.scheduled_at)
    return {
        "id": message.id,
        "time_scheduled": due,
        "time_next": due,
        "time_created": now,
        "message": encoded.body,
        "encoding": encoded.encoding,
        "dead_letter_reason": message.dead_letter_reason,
        "dead_letter_description": message.dead_letter_description,
        "dead_letter_source": message.dead_letter_source,
        **envelope(message),
    }


def envelope(message: Message) -> dict[str, Any]:
    """The columns of what is written on a message from outside, its content left out."""
    return {
        "priority": message.priority,
        "content_type": message.content_type,
        "headers": m.encode_headers(message.headers),
        "correlation_id": message.correlation_id,
        "session_id": message.session_id,
        "partition_key": message.partition_key,
        "subject": message.subject,
        "recipient": message.to,
        "reply_to": message.reply_to,
        "time_to_live": None if message.time_to_live is None else _span(message.time_to_live),
    }


def to_message(row: Mapping[str, Any]) -> Message:
    """The Message this row holds; raises UnreadableMessageError when its content or headers cannot be decoded."""
    scheduled = row["time_scheduled"]
    return Message(
        id=row["id"],
        content=m.decode(row["encoding"], row["message"], row["id"]),
        content_type=row["content_type"],
        headers=m.decode_headers(row["headers"], row["id"]),
        correlation_id=row["correlation_id"],
        session_id=row["session_id"],
        partition_key=row["partition_key"],
        subject=row["subject"],
        to=row["recipient"],
        reply_to=row["reply_to"],
        priority=row["priority"],
        time_to_live=None if row["time_to_live"] is None else timedelta(microseconds=row["time_to_live"] // 1000),
        sequence_number=row["sequence"],
        lock_token=row["lock_token"],
        delivery_count=row["epoch"],
        enqueued_at=from_nanoseconds(row["time_created"]),
        scheduled_at=from_nanoseconds(scheduled) if scheduled > row["time_created"] else None,
        dead_letter_reason=row["dead_letter_reason"],
        dead_letter_description=row["dead_letter_description"],
        dead_letter_source=row["dead_letter_source"],
        state=m.LEASED if row["lock_token"] is not None else m.AVAILABLE,
    )


def state_of(table: sa.Table, now: int) -> sa.Label[str]:
    """The state of a row, as an expression."""
    c = table.c
    return sa.case(
        (c.time_acked.is_not(None), m.ACKNOWLEDGED),
        (c.time_dead.is_not(None), m.DEAD),
        (c.time_next.is_(None), m.DEFERRED),
        (c.time_next <= now, m.AVAILABLE),
        (c.lock_token.is_not(None), m.LEASED),
        else_=m.SCHEDULED,
    ).label("state")


def from_nanoseconds(value: int) -> datetime:
    return datetime.fromtimestamp(value // NANOSECONDS, timezone.utc) + timedelta(
        microseconds=value % NANOSECONDS // 1000
    )


def _to_nanoseconds(value: datetime) -> int:
    if value.tzinfo is None:
        raise UnstorableContentError(f"times are aware: {value} has no time zone")
    return _span(value - datetime(1970, 1, 1, tzinfo=timezone.utc))


def _span(value: timedelta) -> int:
    return (value.days * 86_400 + value.seconds) * NANOSECONDS + value.microseconds * 1000
