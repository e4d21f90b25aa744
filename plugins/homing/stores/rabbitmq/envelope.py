"""Between a Message and what AMQP carries: a body, a few properties, a table of headers.

The body is the encoded content. AMQP's `type` says how to read it, and when it was stored:
"homing/json/1794914256155700". A message without it was not sent by Homing; it is read as its content type says, else
as text, else as bytes. The caller's headers travel as JSON text, because AMQP's own tables change types. Bookkeeping
that a message must not lose on its way back into the queue is in headers too. Most messages have none of either: a
table takes longer to read than all other properties. Times are microseconds since 1970.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from typing import Any, NamedTuple

import pika

from homing import message as m
from homing.errors import UnreadableMessageError
from homing.excerpts import excerpt
from homing.ids import new_id
from homing.json_values import DEEPEST, is_too_deep
from homing.message import Message
from homing.row import span
from homing.store import ATTEMPTS
from homing.stores.rabbitmq.connection import UNREADABLE
from homing.stores.rabbitmq.topology import delay_route

HEADERS = "homing-headers"
ENVELOPE = "homing-envelope"
DUE_AT = "homing-due-at"
DELIVERIES = "homing-deliveries"
CRASHES = "homing-crashes"
REASON = "homing-dead-letter-reason"
DESCRIPTION = "homing-dead-letter-description"
SOURCE = "homing-dead-letter-source"
LONG_ID = "homing-id"
_OURS = "homing-"
_MARK = "homing/"
_BROKERS = ("x-death", "x-first-death-", "x-last-death-", "x-acquired-count")

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_PERSISTENT = 2
_SHORT = 255  # bytes in one of AMQP's own properties
_FIELDS = ("session_id", "partition_key", "subject", "to")
_PROPERTIES = ("content_type", "correlation_id", "reply_to")
_EXTRA = {*_FIELDS, *_PROPERTIES, "priority", "time_to_live"}


class Mark(NamedTuple):
    """What AMQP's `type` says of a message of ours."""

    encoding: str
    enqueued_at: datetime | None


@dataclass(frozen=True)
class Outgoing:
    """A message ready to be sent: where to, and what."""

    message_id: str
    exchange: str
    routing_key: str
    properties: Any
    body: bytes


class Incoming:
    """A message as it arrived, not yet decoded.

    `plain` says that it has nothing written on it that a message does not get when it is stored and sent at once.
    """

    __slots__ = ("body", "headers", "id", "mark", "plain", "properties", "redelivered", "returns", "tag")

    def __init__(self, tag: int, redelivered: bool, properties: Any, body: bytes, *, counted: bool = True) -> None:
        """`counted` says that the queue counts deliveries; a classic queue hands on what a sender wrote for a count."""
        self.tag = tag
        self.redelivered = redelivered
        self.properties = properties
        self.body = body
        self.headers: dict[str, Any] = properties.headers or {}
        if is_too_deep(self.headers):  # neither could they be sent on
            self.headers = {UNREADABLE: True}
        #: How often it came back into the queue from a consumer since it was put there.
        self.returns = _whole(self.headers.pop("x-delivery-count", 0) if counted else 0) or int(redelivered)
        #: None on a foreign message. Nothing is raised here, whatever it contains: pika would lose its connection.
        self.mark = _mark(properties.type)
        self.plain = not (redelivered or self.headers) and self.mark is not None
        # A foreign message without an id gets one, which it keeps if it goes back into the queue.
        self.id = str(_text(properties.message_id) or self.headers.get(LONG_ID) or new_id())

    def number(self, header: str) -> int:
        return _whole(self.headers.get(header, 0))

    @property
    def deliveries(self) -> int:
        """How often it was handed out, this time included."""
        return 1 if self.plain else self.number(DELIVERIES) + self.returns + 1


def pack(message: Message, queue: str, now: float) -> Outgoing:
    """A message for this queue, or for the way to it when it is scheduled; raises UnstorableContentError."""
    encoded = m.encode(message.content)
    headers: dict[str, Any] = {}
    kind = f"{_MARK}{encoded.encoding}/{int(now * 1e6)}"
    properties = pika.BasicProperties(delivery_mode=_PERSISTENT, message_id=message.id, type=kind)
    extra = {name: value for name in _FIELDS if (value := getattr(message, name)) is not None}
    for name in _PROPERTIES:
        value = getattr(message, name)
        if value is not None and len(value.encode()) <= _SHORT:
            setattr(properties, name, value)
        elif value is not None:
            extra[name] = value
    if len(message.id) * 4 > _SHORT and len(message.id.encode()) > _SHORT:
        properties.message_id, headers[LONG_ID] = None, message.id
    if message.priority:
        extra["priority"] = message.priority
    if message.time_to_live is not None:
        span(message.time_to_live)  # refuses what no store can count
        extra["time_to_live"] = message.time_to_live.total_seconds()
    if extra:
        headers[ENVELOPE] = m.encode_json(extra)
    if message.headers:
        headers[HEADERS] = m.encode_headers(message.headers)
    if message.dead_letter_reason is not None:
        headers |= _explained(message.dead_letter_reason, message.dead_letter_description, message.dead_letter_source)
    properties.headers = headers or None
    packed = Outgoing(message.id, "", queue, properties, encoded.body.encode())
    if message.scheduled_at is None:
        return packed
    return delayed(packed, queue, message.scheduled_at.timestamp(), now)


def delayed(packed: Outgoing, queue: str, due: float, now: float) -> Outgoing:
    """The same, to arrive in the queue when it is due. Times are seconds since 1970."""
    packed.properties.headers = {**(packed.properties.headers or {}), DUE_AT: round(due * 1e6)}
    if due <= now:
        return packed
    return waiting(packed, queue, due - now)


def waiting(packed: Outgoing, queue: str, seconds: float) -> Outgoing:
    """The same, to arrive in the queue after so many seconds, at most LONGEST. Independent of this process's clock:
    the next consumer's may differ."""
    exchange, routing_key, _ = delay_route(queue, seconds)
    return Outgoing(packed.message_id, exchange, routing_key, packed.properties, packed.body)


def repack(delivery: Incoming, queue: str, *, deliveries: int, crashes: int, attempts: int = 0) -> Outgoing:
    """A delivery to be put into a queue once more, remembering how often it was handed out, came back and was tried."""
    old = delivery.headers
    headers = {key: value for key, value in old.items() if not key.startswith(_BROKERS)}
    headers |= {DELIVERIES: deliveries, CRASHES: crashes, ATTEMPTS: attempts}
    properties = pika.BasicProperties(
        headers=headers,
        delivery_mode=_PERSISTENT,
        message_id=delivery.id if len(delivery.id.encode()) <= _SHORT else None,
        timestamp=delivery.properties.timestamp,
        type=delivery.properties.type,
        app_id=delivery.properties.app_id,
        content_encoding=delivery.properties.content_encoding,
        **{name: getattr(delivery.properties, name) for name in _PROPERTIES},
    )
    return Outgoing(delivery.id, "", queue, properties, delivery.body)


def dead_lettered(packed: Outgoing, reason: str, description: str | None, source: str) -> Outgoing:
    """The same, with the reason why it is dead."""
    headers = packed.properties.headers
    for key in (REASON, DESCRIPTION, SOURCE):
        headers.pop(key, None)
    headers |= _explained(reason, description, source)
    return packed


def unpack(delivery: Incoming, lock_token: str) -> Message:
    """The message that arrived; raises UnreadableMessageError when ours cannot be decoded, or its properties cannot."""
    if UNREADABLE in delivery.headers:
        raise UnreadableMessageError(
            f"message {delivery.id} has properties that cannot be read, or headers of more than {DEEPEST} levels: its "
            "content is kept without them"
        )
    if delivery.mark is None:
        return unpack_raw(delivery, lock_token)
    try:
        return _unpack(delivery, delivery.mark, lock_token)
    except (OverflowError, TypeError, ValueError) as error:
        raise UnreadableMessageError(
            f"message {delivery.id} cannot be decoded, though Homing marked it: {error}"
        ) from error


def _unpack(delivery: Incoming, mark: Mark, lock_token: str) -> Message:
    # What is left out here is as the class says it is by default.
    fields: dict[str, Any] = {
        "id": delivery.id,
        "content": m.decode(mark.encoding, delivery.body.decode(), delivery.id),
        "headers": {},
        "lock_token": lock_token,
        "delivery_count": delivery.deliveries,
        "enqueued_at": mark.enqueued_at,
        "state": m.LEASED,
    }
    if not delivery.plain:
        fields.update(_extra(delivery))
    properties = delivery.properties
    for name in _PROPERTIES:
        if (value := getattr(properties, name)) is not None:
            fields[name] = _text(value)
    # As Message(...) does, but without setting twenty fields one by one: this is every message's way.
    message = object.__new__(Message)
    object.__setattr__(message, "__dict__", fields)
    return message


def _extra(delivery: Incoming) -> dict[str, Any]:
    """What is written on a message beyond the plain."""
    headers = delivery.headers
    extra = m.decode_headers(headers.get(ENVELOPE), delivery.id)
    if "time_to_live" in extra:
        extra["time_to_live"] = timedelta(seconds=extra["time_to_live"])
    return {
        **{name: value for name, value in extra.items() if name in _EXTRA},
        "headers": {**m.decode_headers(headers.get(HEADERS), delivery.id), **_tried(delivery)},
        "scheduled_at": _datetime(headers.get(DUE_AT)),
        "dead_letter_reason": headers.get(REASON) or _broker_reason(headers),
        "dead_letter_description": headers.get(DESCRIPTION),
        "dead_letter_source": headers.get(SOURCE),
    }


def expires_at(message: Message) -> float | None:
    """When a message has been due for as long as it may be; seconds since 1970."""
    if message.time_to_live is None or message.enqueued_at is None:
        return None
    # In seconds, since no date may be so far away.
    return (message.scheduled_at or message.enqueued_at).timestamp() + message.time_to_live.total_seconds()


def due_at(delivery: Incoming) -> float:
    """When the message may be handed out, for one whose way was longer than LONGEST; seconds since 1970."""
    return delivery.number(DUE_AT) / 1e6


def unpack_raw(delivery: Incoming, lock_token: str) -> Message:
    """A foreign message, or one of ours that cannot be decoded: its body as JSON, text or bytes."""
    properties, headers = delivery.properties, delivery.headers
    theirs = {key: _plain(value) for key, value in headers.items() if not key.startswith((_OURS, *_BROKERS))}
    return Message(
        id=delivery.id,
        content=_foreign_content(delivery),
        content_type=_text(properties.content_type),
        headers={**theirs, **_tried(delivery)},
        correlation_id=_text(properties.correlation_id),
        reply_to=_text(properties.reply_to),
        subject=_text(properties.type) if delivery.mark is None else None,
        lock_token=lock_token,
        delivery_count=delivery.deliveries,
        enqueued_at=_foreign_time(properties.timestamp),
        dead_letter_reason=headers.get(REASON) or _broker_reason(headers),
        dead_letter_description=headers.get(DESCRIPTION),
        dead_letter_source=headers.get(SOURCE),
        state=m.LEASED,
    )


def _tried(delivery: Incoming) -> dict[str, int]:
    """How often it was tried before it was postponed, as a header."""
    attempts = delivery.number(ATTEMPTS)
    return {ATTEMPTS: attempts} if attempts else {}


def _foreign_content(delivery: Incoming) -> Any:
    try:
        text = delivery.body.decode()
    except UnicodeDecodeError:
        return delivery.body
    kind = (_text(delivery.properties.content_type) or "").partition(";")[0].strip().lower()
    if kind == "application/json" or kind.endswith("+json"):
        try:
            return m.decode(m.JSON, text, delivery.id)
        except UnreadableMessageError:
            return text
    return text


def _text(value: str | bytes | None) -> str | None:
    """A property, which pika leaves as bytes where it is not UTF-8."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _broker_reason(headers: dict[str, Any]) -> str | None:
    """Why the broker itself dead-lettered a message; an expired delay does not count."""
    deaths = headers.get("x-death")
    for death in deaths if isinstance(deaths, list) else ():
        if isinstance(death, dict) and ".delay." not in str(death.get("queue")):
            return str(death.get("reason"))
    return None


def _plain(value: Any) -> Any:
    """A header of AMQP's as JSON has it."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode(errors="replace")
    if isinstance(value, datetime):
        return value.isoformat()
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _whole(value: Any) -> int:
    """A count that anyone may have written: less than none would give a message more tries than others have."""
    return max(0, value) if isinstance(value, int) else 0


def _explained(reason: str, description: str | None, source: str | None) -> dict[str, Any]:
    # A frame holds no more.
    told = {REASON: excerpt(reason, _SHORT), DESCRIPTION: excerpt(description), SOURCE: source}
    return {key: value for key, value in told.items() if value is not None}


@lru_cache(maxsize=1024)  # messages stored together have the same
def _mark(kind: Any) -> Mark | None:
    if not isinstance(kind, str) or not kind.startswith(_MARK):
        return None
    encoding, _, stored = kind.removeprefix(_MARK).partition("/")
    try:
        return Mark(encoding, _datetime(int(stored)))
    except (OverflowError, ValueError):
        return None


def _datetime(microseconds: Any) -> datetime | None:
    return _EPOCH + timedelta(microseconds=microseconds) if isinstance(microseconds, int) else None


def _foreign_time(seconds: Any) -> datetime | None:
    """The time that a foreign sender wrote on a message; it may be anything."""
    try:
        return _datetime(seconds * 1_000_000)
    except (OverflowError, TypeError):
        return None
