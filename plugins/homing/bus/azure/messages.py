"""Converts between a message of the bus and one of the SDK."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from azure.servicebus import ServiceBusMessage, ServiceBusMessageState, ServiceBusReceivedMessage

from homing import message as m
from homing.bus.message import ACTIVE, DEFERRED, SCHEDULED, Message
from homing.errors import UnreadableMessageError
from homing.ids import new_id
from homing.stores.servicebus.bodies import (
    CRASHES,
    ENCODING,
    HEADERS,
    ID,
    PARTITION,
    PRIORITY,
    raw_body,
    read_body,
    read_fields,
    read_properties,
    write_message,
)

_STATES = {ServiceBusMessageState.DEFERRED: DEFERRED, ServiceBusMessageState.SCHEDULED: SCHEDULED}


def to_sdk(message: Message, at: datetime | None = None) -> ServiceBusMessage:
    """A new message with an id, so that the service can detect a duplicate when it is sent again."""
    return write_message(
        message.body,
        message.application_properties,
        None if message.time_to_live is None else timedelta(seconds=message.time_to_live),
        session_id=message.session_id,
        message_id=message.message_id or new_id(),
        scheduled_enqueue_time_utc=at,
        content_type=message.content_type,
        correlation_id=message.correlation_id,
        subject=message.label,
        partition_key=message.partition_key,
        to=message.to,
        reply_to=message.reply_to,
        reply_to_session_id=message.reply_to_session_id,
    )


def to_bus(
    received: ServiceBusReceivedMessage, locked_until: datetime | None, *, dead_letter_of: str | None = None
) -> Message:
    """The message as a receiver of the bus gets it; locked, unless it cannot be settled."""
    properties = read_properties(received, dead_letter_of)
    encoding = properties.pop(ENCODING, None)
    life, message_id = received.time_to_live, properties.pop(ID, received.message_id)
    try:
        body = read_body(received, encoding)
        properties = _with_headers(properties, str(received.message_id)) if encoding else properties
    except UnreadableMessageError:
        body = raw_body(received)  # the caller must be able to look at it and to settle it
    return Message(
        body=body,
        content_type=received.content_type or "",
        message_id=None if message_id is None else str(message_id),
        reply_to_session_id=received.reply_to_session_id,
        label=received.subject,
        time_to_live=None if life is None else life.total_seconds(),
        application_properties=properties,
        lock_token=None if locked_until is None else str(received.lock_token),
        locked_until=locked_until,
        # The service counts the deliveries before this one.
        delivery_count=(received.delivery_count or 0) + 1,
        enqueued_time=received.enqueued_time_utc,
        enqueued_sequence_number=received.enqueued_sequence_number,
        dead_letter_error_description=received.dead_letter_error_description,
        dead_letter_reason=received.dead_letter_reason,
        state=_STATES.get(received.state, ACTIVE),
        **read_fields(received, dead_letter_of),
    )


def _with_headers(properties: dict[str, Any], message_id: str) -> dict[str, Any]:
    """The properties, plus the headers that a store sent as one of them; a value no property can have is JSON text."""
    headers = m.decode_headers(properties.get(HEADERS), message_id)
    ours = (HEADERS, PARTITION, PRIORITY, CRASHES)
    others = {name: value for name, value in properties.items() if name not in ours}
    return others | {
        name: m.encode_json(value) if isinstance(value, (dict, list)) else value for name, value in headers.items()
    }
