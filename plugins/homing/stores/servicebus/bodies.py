"""Bodies and properties as AMQP carries them.

A body is always a data section: bytes as they are, text and JSON as UTF-8, told apart by a property that receivers who
do not know it can ignore.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from azure.servicebus import ServiceBusReceivedMessage
from azure.servicebus.amqp import AmqpMessageBodyType

from homing import message as m

ENCODING = "homing-encoding"
_RAW = "bytes"


def write_body(content: Any) -> tuple[bytes, str]:
    """The data section and how it is to be read; raises UnstorableContentError."""
    if isinstance(content, bytes):
        return content, _RAW
    encoded = m.encode(content)
    return encoded.body.encode(), encoded.encoding


def read_body(received: ServiceBusReceivedMessage, encoding: str | None) -> Any:
    """What `write_body` wrote; a stranger's data section is bytes, and a value what it is.

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


def read_properties(received: ServiceBusReceivedMessage) -> dict[str, Any]:
    """The application properties: the SDK hands out names and texts as bytes."""
    properties: Mapping[Any, Any] = received.application_properties or {}
    return {str(_plain(name)): _plain(value) for name, value in properties.items()}


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
