"""A message as AMQP carries it: the one mapping, of the store's messages and of those of the bus.

A body is always a data section: bytes as they are, text and JSON as UTF-8, told apart by a property that receivers who
do not know it can ignore.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage
from azure.servicebus._pyamqp.utils import amqp_long_value
from azure.servicebus.amqp import AmqpMessageBodyType

from homing import message as m
from homing.errors import UnstorableContentError

ENCODING = "homing-encoding"
HEADERS = "homing-headers"
PRIORITY = "homing-priority"
PARTITION = "homing-partition-key"
ID = "homing-id"
CRASHES = "homing-crashes"
_RAW = "bytes"
_SERVICES_OWN = ("DeadLetterReason", "DeadLetterErrorDescription")
_MAX_LIFE = 2**32 - 1  # milliseconds, as AMQP counts them


def write_message(
    content: Any, properties: Mapping[str, Any], life: timedelta | None, **fields: Any
) -> ServiceBusMessage:
    """A message of the SDK's, with the fields by their names there; raises UnstorableContentError."""
    body, encoding = write_body(content)
    written = write_properties({**properties, ENCODING: encoding})
    outgoing = ServiceBusMessage(body, application_properties=written, **fields)
    write_life(outgoing, life)
    return outgoing


def read_fields(received: ServiceBusReceivedMessage, dead_letter_of: str | None) -> dict[str, Any]:
    """What both kinds of messages call by the same names; `dead_letter_of` says whose dead letter it is."""
    return {
        "to": received.to,
        "reply_to": received.reply_to,
        "session_id": received.session_id,
        "correlation_id": None if received.correlation_id is None else str(received.correlation_id),
        "partition_key": received.partition_key,
        "sequence_number": received.sequence_number,
        "dead_letter_source": received.dead_letter_source or dead_letter_of,
    }


def write_body(content: Any) -> tuple[bytes, str]:
    """The data section and how it is to be read; raises UnstorableContentError."""
    if isinstance(content, bytes):
        return content, _RAW
    encoded = m.encode(content)
    return encoded.body.encode(), encoded.encoding


def read_body(received: ServiceBusReceivedMessage, encoding: str | None) -> Any:
    """What `write_body` wrote; a foreign data section becomes bytes, and a foreign value stays as it is.

    Raises UnreadableMessageError for what cannot be decoded.
    """
    raw = raw_body(received)
    if not isinstance(raw, bytes) or encoding in (None, _RAW):
        return raw
    text = raw.decode("utf-8", errors="replace")
    return text if encoding == m.TEXT else m.decode(encoding, text, str(received.message_id))


def raw_body(received: ServiceBusReceivedMessage) -> Any:
    if received.body_type == AmqpMessageBodyType.DATA:
        return b"".join(bytes(part) for part in received.body)
    return _plain(list(received.body) if received.body_type == AmqpMessageBodyType.SEQUENCE else received.body)


def write_properties(properties: Mapping[str, Any]) -> dict[Any, Any]:
    """Whole numbers with all the bits AMQP has for them: the SDK by itself takes 32. Raises UnstorableContentError."""
    return {name: _long(name, value) if type(value) is int else value for name, value in properties.items()}


def _long(name: str, value: int) -> Any:
    if not -(2**63) <= value < 2**63:
        raise UnstorableContentError(
            f"the property {name!r} is a number of more than 64 bits, which AMQP does not have"
        )
    return amqp_long_value(value)  # type: ignore[no-untyped-call]


def write_life(outgoing: ServiceBusMessage, life: timedelta | None) -> None:
    """Its time to live, which the SDK would cut to whole seconds; raises UnstorableContentError."""
    if life is None:
        return
    milliseconds = max(1, round(life / timedelta(milliseconds=1)))
    if milliseconds > _MAX_LIFE:
        raise UnstorableContentError(f"time_to_live must be at most 49 days at the service, got {life}")
    outgoing.time_to_live = life
    written = outgoing.raw_amqp_message
    assert written.header is not None
    assert written.properties is not None
    written.header.time_to_live = milliseconds
    if written.properties.creation_time is not None:
        written.properties.absolute_expiry_time = written.properties.creation_time + milliseconds


def read_properties(received: ServiceBusReceivedMessage, dead_letter_of: str | None) -> dict[str, Any]:
    """The application properties: the SDK hands out names and texts as bytes. Without those that the service writes
    among them on a dead letter."""
    properties: Mapping[Any, Any] = received.application_properties or {}
    plain = {str(_plain(name)): _plain(value) for name, value in properties.items()}
    return {name: value for name, value in plain.items() if dead_letter_of is None or name not in _SERVICES_OWN}


def as_headers(properties: Mapping[str, Any]) -> dict[str, Any]:
    """The properties of a foreign message as headers; values of a type that no header has become texts."""
    return {name: _headers_value(value) for name, value in properties.items()}


def _headers_value(value: Any) -> Any:
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    return value.isoformat() if isinstance(value, datetime) else str(value)


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {_plain(key): _plain(item) for key, item in value.items()}
    return value
