"""Converts between a message of the bus and the message that its store keeps."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from homing import message as m
from homing.bus.message import ACTIVE, DEFERRED, SCHEDULED, Message
from homing.errors import NotInFlightError

# The one header that is not an application property: it holds what the store has no column for.
_ENVELOPE = "homing-bus"
_STATES = {m.DEFERRED: DEFERRED, m.SCHEDULED: SCHEDULED}


def to_store(
    message: Message, row_id: str, *, in_session: bool, expires: bool, at: datetime | None = None, hops: int = 0
) -> m.Message:
    """The message for the store. The session orders deliveries only where sessions are required."""
    envelope: dict[str, Any] = {
        "message_id": message.message_id,
        "reply_to_session_id": message.reply_to_session_id,
        "session_id": message.session_id,
        "time_to_live": message.time_to_live,
        "enqueued_sequence_number": message.enqueued_sequence_number,
        "hops": hops or None,
    }
    return m.Message(
        row_id,
        message.body,
        content_type=message.content_type,
        headers={
            **message.application_properties,
            _ENVELOPE: {name: value for name, value in envelope.items() if value is not None},
        },
        correlation_id=message.correlation_id,
        session_id=message.session_id if in_session else None,
        partition_key=message.partition_key,
        subject=message.label,
        to=message.to,
        reply_to=message.reply_to,
        time_to_live=timedelta(seconds=message.time_to_live) if expires and message.time_to_live else None,
        scheduled_at=at,
        dead_letter_reason=message.dead_letter_reason,
        dead_letter_description=message.dead_letter_error_description,
        dead_letter_source=message.dead_letter_source,
    )


def to_bus(kept: m.Message, *, locked_until: datetime | None = None) -> Message:
    """The message as a receiver gets it."""
    headers = dict(kept.headers)
    envelope = headers.pop(_ENVELOPE, {})
    sequence = kept.sequence_number
    return Message(
        body=kept.content,
        content_type=kept.content_type or "",
        message_id=envelope.get("message_id") or kept.id,
        to=kept.to,
        reply_to=kept.reply_to,
        reply_to_session_id=envelope.get("reply_to_session_id"),
        label=kept.subject,
        session_id=envelope.get("session_id") or kept.session_id,
        correlation_id=kept.correlation_id,
        partition_key=kept.partition_key,
        time_to_live=envelope.get("time_to_live"),
        application_properties=headers,
        sequence_number=sequence,
        lock_token=None if kept.lock_token is None else f"{kept.lock_token}.{sequence}",
        locked_until=locked_until,
        delivery_count=kept.delivery_count,
        enqueued_time=kept.enqueued_at,
        enqueued_sequence_number=envelope.get("enqueued_sequence_number", sequence),
        dead_letter_error_description=kept.dead_letter_description,
        dead_letter_reason=kept.dead_letter_reason,
        dead_letter_source=kept.dead_letter_source,
        state=_STATES.get(kept.state, ACTIVE),
    )


def held(message: Message) -> m.Message:
    """What the store needs to settle a message."""
    token, separator, number = (message.lock_token or "").rpartition(".")
    if not separator or not number.isdigit():
        raise NotInFlightError(f"message {message.message_id} was not received from this bus, and cannot be settled")
    return m.Message(message.message_id or number, None, lock_token=token, sequence_number=int(number))


def hops(kept: m.Message) -> int:
    """How often the message has been forwarded."""
    return int(kept.headers.get(_ENVELOPE, {}).get("hops", 0))


def passed_on(kept: m.Message) -> Message:
    """The message as it was sent, for passing it on to the next store."""
    message = to_bus(kept)
    return replace(message, lock_token=None, sequence_number=None, delivery_count=0, enqueued_time=None)
