"""Between a Message and one of the SDK.

What Service Bus has a field for travels in that field. The caller's headers travel as JSON text in one property: AMQP
would change their types. If that property is missing, the others are the headers: the message is foreign, or was sent
 by `homing.bus`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from azure.servicebus import ServiceBusMessage, ServiceBusMessageState, ServiceBusReceivedMessage

from homing import message as m
from homing.errors import UnreadableMessageError
from homing.ids import new_id
from homing.message import Message
from homing.store import ATTEMPTS, CRASHED, EXPIRED
from homing.stores.servicebus.bodies import (
    CRASHES,
    ENCODING,
    HEADERS,
    ID,
    PARTITION,
    PRIORITY,
    as_headers,
    raw_body,
    read_body,
    read_fields,
    read_properties,
    write_message,
)

_STATES = {
    ServiceBusMessageState.ACTIVE: m.AVAILABLE,
    ServiceBusMessageState.DEFERRED: m.DEFERRED,
    ServiceBusMessageState.SCHEDULED: m.SCHEDULED,
}
# The service's words for what stores call so.
_REASONS = {"TTLExpiredException": EXPIRED, "MaxDeliveryCountExceeded": CRASHED}


def pack(message: Message, beside: Mapping[str, Any] | None = None) -> ServiceBusMessage:
    """The message, with these properties beside its own; raises UnstorableContentError for what cannot be stored."""
    properties: dict[str, Any] = dict(beside or {})
    if message.headers:
        properties[HEADERS] = m.encode_headers(message.headers)
    if message.priority:
        properties[PRIORITY] = message.priority
    partition = message.partition_key
    if partition is not None and message.session_id not in (None, partition):
        # To the service the two are the same thing.
        properties[PARTITION], partition = partition, None
    return write_message(
        message.content,
        properties,
        message.time_to_live,
        message_id=message.id,
        session_id=message.session_id,
        partition_key=partition,
        scheduled_enqueue_time_utc=message.scheduled_at,
        content_type=message.content_type,
        correlation_id=message.correlation_id,
        subject=message.subject,
        to=message.to,
        reply_to=message.reply_to,
    )


def pack_again(message: Message, due: datetime, attempts: int) -> ServiceBusMessage:
    """The next copy of a received message, for then. At the service it has an id of its own: a queue that detects
    duplicates would drop it otherwise."""
    copy = replace(message, id=new_id(), headers={**message.headers, ATTEMPTS: attempts}, scheduled_at=due)
    return pack(copy, {ID: message.id, CRASHES: message.delivery_count - 1})


def unpack(
    received: ServiceBusReceivedMessage,
    name: str,
    *,
    lock_token: str | None = None,
    source: str | None = None,
    raw: bool = False,
) -> Message:
    """A message that was received (under `lock_token`) or merely looked at; `source` says whose dead letter it is.

    Raises UnreadableMessageError for what cannot be decoded; with `raw`, its text is the content instead.
    """
    properties, fields = read_properties(received, source), read_fields(received, source)
    encoding = None if raw else properties.pop(ENCODING, None)
    message_id = str(properties.pop(ID, None) or message_id_of(received, name))
    crashes = properties.pop(CRASHES, 0)
    content: Any = read_body(received, encoding) if encoding else _foreign_content(received)
    priority = properties.pop(PRIORITY, 0)
    fields["partition_key"] = properties.pop(PARTITION, received.partition_key)
    ours = encoding is not None and HEADERS in properties
    headers = m.decode_headers(properties[HEADERS], message_id) if ours else as_headers(properties)
    scheduled, enqueued = received.scheduled_enqueue_time_utc, received.enqueued_time_utc
    reason = received.dead_letter_reason
    deliveries = (received.delivery_count or 0) + (crashes if isinstance(crashes, int) else 0)
    state = m.DEAD if source is not None else _STATES.get(received.state, m.AVAILABLE)
    return Message(
        message_id,
        content,
        content_type=received.content_type,
        headers=headers,
        subject=received.subject,
        priority=priority if isinstance(priority, int) else 0,
        time_to_live=_life(received.time_to_live),
        lock_token=lock_token,
        # The service counts the deliveries before this one.
        delivery_count=deliveries if lock_token is None else deliveries + 1,
        enqueued_at=enqueued,
        scheduled_at=scheduled,
        dead_letter_reason=None if reason is None else _REASONS.get(reason, reason),
        dead_letter_description=received.dead_letter_error_description,
        state=state if lock_token is None else m.LEASED,
        **fields,
    )


def message_id_of(received: ServiceBusReceivedMessage, name: str) -> str:
    """Its id; for a foreign message without one, an id made of its place in the queue, which stays the same."""
    if received.message_id is not None:
        return str(received.message_id)
    # A queue that was made anew counts from one again.
    enqueued = received.enqueued_time_utc
    when = "" if enqueued is None else f"-{round(enqueued.timestamp() * 1000):x}"
    return f"{name}-{received.sequence_number}{when}"


def _foreign_content(received: ServiceBusReceivedMessage) -> Any:
    """JSON where its content type says so, else text, else bytes."""
    body = raw_body(received)
    if not isinstance(body, bytes):
        return body
    try:
        text = body.decode()
        return m.decode(m.JSON, text) if "json" in (received.content_type or "") else text
    except (UnicodeDecodeError, UnreadableMessageError):
        return body


def _life(value: timedelta | None) -> timedelta | None:
    return value if value else None
