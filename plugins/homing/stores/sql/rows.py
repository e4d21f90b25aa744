"""Between a Message and its row."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from typing import Any

import sqlalchemy as sa

from homing import message as m
from homing.errors import UnreadableMessageError, UnstorableContentError
from homing.message import LEASED, TEXT, Message, decode
from homing.stores.sql.database import NANOSECONDS
from homing.stores.sql.header_columns import OWN, HeaderColumns
from homing.stores.sql.text_rules import MOST_CHARACTERS, fault_of
from homing.stores.validation import refuse_unfit

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)

_DEFAULTS = {"priority": 0}  # of columns that hold something when nothing is said

#: What is read of a fresh message: one that is nothing but its content, and as `store()` left it. The rest follows.
FRESH = ("sequence", "time_next", "id", "message", "encoding")
FRESH_ROW = len(FRESH) + 1  # values, the last of them what `beyond_fresh` says; no other row has so many
#: What claiming needs to know of a row.
NEEDED = ("sequence", "time_next", "epoch", "crashes", "lock_token", "time_scheduled", "time_to_live")
# What most messages leave empty, by its column and its field.
_RARE = {
    "content_type": "content_type",
    "correlation_id": "correlation_id",
    "session_id": "session_id",
    "partition_key": "partition_key",
    "subject": "subject",
    "recipient": "to",
    "reply_to": "reply_to",
    "dead_letter_reason": "dead_letter_reason",
    "dead_letter_description": "dead_letter_description",
    "dead_letter_source": "dead_letter_source",
}
#: What every message has.
PLAIN = (*NEEDED, "time_created", "priority", "id", "message", "encoding", "headers")
#: What `read` takes, in this order.
READ = (*PLAIN, *_RARE)
_ID = READ.index("id")
#: The place of the headers in READ and in PLAIN.
HEADERS = READ.index("headers")
_NUMBERS = {"sequence", "epoch", "crashes", "priority", *(name for name in READ if name.startswith("time_"))}
_TEXTS = frozenset({str, type(None)})
_new, _set = object.__new__, object.__setattr__


def to_row(message: Message, now: int, *, partitions: int = 0, columns: HeaderColumns | None = None) -> dict[str, Any]:
    """The values to insert, where they are not the column's default; raises UnstorableContentError for what cannot be
    stored."""
    if type(message.id) is not str or not 0 < len(message.id) <= MOST_CHARACTERS:
        raise UnstorableContentError(
            f"a message id is a text of 1 to {MOST_CHARACTERS} characters, not {message.id!r:.60}"
        )
    if type(message.priority) is not int or not -(2**31) <= message.priority < 2**31:
        raise UnstorableContentError(f"a priority is a whole number of 32 bits, not {message.priority!r:.60}")
    refuse_unfit(message)
    row = plain_row(message.id, message.content, now, partitions=0)
    if message.scheduled_at is not None:
        row["time_scheduled"] = to_nanoseconds(message.scheduled_at)
        row["time_next"] = max(row["time_scheduled"], 1)
    said = {
        **envelope(message),
        "dead_letter_reason": message.dead_letter_reason,
        "dead_letter_description": message.dead_letter_description,
        "dead_letter_source": message.dead_letter_source,
    }
    row.update((name, value) for name, value in said.items() if value is not None and value != _DEFAULTS.get(name))
    if partitions:
        row["bucket"] = bucket_of(message.partition_key or message.session_id or message.id, partitions)
    return {**row, **columns.values(message)} if columns else row


def plain_row(message_id: str, content: Any, now: int, *, partitions: int) -> dict[str, Any]:
    """The values to insert for a message that is nothing but its content."""
    encoded = m.encode(content)
    row = {
        "id": message_id,
        "time_scheduled": now,
        "time_next": now,
        "time_created": now,
        "message": encoded.body,
        "encoding": encoded.encoding,
    }
    if partitions:
        row["bucket"] = bucket_of(message_id, partitions)
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
            refuse_bad_text(name, text)
    return {
        **texts,
        "priority": message.priority,
        "headers": m.encode_headers(message.headers),
        "time_to_live": None if message.time_to_live is None else _span(message.time_to_live),
    }


def bucket_of(key: str, partitions: int) -> int:
    """The partition a key belongs to, for all processes and for ever the same."""
    return zlib.crc32(key.encode("utf-8")) % partitions


def read(row: tuple[Any, ...], lock_token: str | None, more: int = 0) -> Message:
    """The Message in these values of READ, or of PLAIN when it has no others, delivered `more` times than they say.

    Raises UnreadableMessageError when they cannot be decoded, or are not what their columns are for.
    """
    sequence, _, epoch, _, _, scheduled, life, created, priority, message_id, body, encoding, headers, *rare = row
    numbers = type(epoch) is type(scheduled) is type(created) is type(priority) is int
    if not (numbers and type(message_id) is type(body) is str):
        raise UnreadableMessageError(_faults(row))
    # What is left out here is as the class says it is by default.
    fields = {
        "id": message_id,
        "content": body if encoding == TEXT else decode(encoding, body, message_id),
        "headers": m.decode_headers(headers, message_id) if headers else {},
        "priority": priority,
        "sequence_number": sequence,
        "delivery_count": epoch + more,
        "enqueued_at": from_nanoseconds(created),
    }
    if lock_token is not None:
        fields["lock_token"] = lock_token
        fields["state"] = LEASED
    if scheduled > created:
        fields["scheduled_at"] = from_nanoseconds(scheduled)
    if rare.count(None) != len(rare) or life is not None:
        if not (_TEXTS.issuperset(map(type, rare)) and (life is None or type(life) is int)):
            raise UnreadableMessageError(_faults(row))
        fields.update(zip(_RARE.values(), rare, strict=False))
        fields["time_to_live"] = None if life is None else timedelta(microseconds=life // 1000)
    message = _new(Message)
    # The same as Message(...), which sets its frozen fields one by one: this is done for every message claimed.
    _set(message, "__dict__", fields)
    return message


def read_fresh(row: tuple[Any, ...], lock_token: str) -> Message:
    """The Message in these values of FRESH, leased for the first time; raises UnreadableMessageError likewise."""
    sequence, created, message_id, body, encoding, _ = row
    if not (type(created) is int and type(message_id) is type(body) is str):
        raise UnreadableMessageError(_faults(row, FRESH))
    fields = {
        "id": message_id,
        "content": body if encoding == TEXT else decode(encoding, body, message_id),
        "headers": {},
        "sequence_number": sequence,
        "delivery_count": 1,
        "enqueued_at": from_nanoseconds(created),
        "lock_token": lock_token,
        "state": LEASED,
    }
    message = _new(Message)
    _set(message, "__dict__", fields)
    return message


def id_of(row: tuple[Any, ...]) -> Any:
    """The id in these values of READ or FRESH."""
    return row[FRESH.index("id") if len(row) == FRESH_ROW else _ID]


def is_fresh(row: tuple[Any, ...]) -> bool:
    """Whether these values of READ are of a fresh message."""
    _, due, epoch, _, token, scheduled, life, created, priority, _, _, _, headers, *rare = row
    return (
        due == scheduled == created
        and epoch == priority == 0
        and token is life is headers is None
        and rare.count(None) == len(rare)
    )


def beyond_fresh(table: sa.Table) -> sa.ColumnElement[Any]:
    """An expression that is NULL for fresh messages."""
    c = table.c
    nothing = (c.lock_token, c.time_to_live, c.headers, beyond_plain(table), *(c[name] for name in table.info[OWN]))
    fresh = sa.and_(
        c.time_scheduled == c.time_next,
        c.time_created == c.time_next,
        *(c[name] == sa.literal_column("0") for name in ("epoch", "priority")),
        *(each.is_(None) for each in nothing),
    )
    return sa.case((fresh, None), else_=sa.literal_column("1"))


def beyond_plain(table: sa.FromClause) -> sa.ColumnElement[Any]:
    """An expression that is NULL for messages that have nothing beyond PLAIN."""
    return sa.func.coalesce(*(table.c[name] for name in _RARE))


def to_message(row: Mapping[str, Any]) -> Message:
    """The Message this row holds; raises UnreadableMessageError when its content or headers cannot be decoded."""
    return read(tuple([row[name] for name in READ]), row["lock_token"])


def legible(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """These values of READ as people can look at them, though they cannot be decoded: the content as plain text."""
    plain = {"encoding": m.TEXT, "headers": None}
    return tuple([plain.get(name, _fitted(name, value)) for name, value in zip(READ, row, strict=True)])


def _fitted(name: str, value: Any) -> Any:
    if value is None or type(value) is _kind(name):
        return value
    if _kind(name) is int:
        return 0
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


def _faults(row: tuple[Any, ...], names: Sequence[str] = READ) -> str:
    """What in these values, of READ if not said otherwise, is not what its column is for.

    SQLite lets people write anything into any column. The values themselves are not for a log.
    """
    wrong = [
        f"{name} is {'not UTF-8' if isinstance(value, bytes) and _kind(name) is str else type(value).__name__}"
        for name, value in zip(names, row, strict=False)
        if value is not None and type(value) is not _kind(name)
    ]
    return f"message {id_of(row)!s} has values its columns are not for: {', '.join(wrong)}"


def _kind(name: str) -> type:
    return int if name in _NUMBERS else str


def state_of(table: sa.FromClause, now: int) -> sa.Label[str]:
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


@lru_cache(maxsize=1024)  # messages stored together share their times
def from_nanoseconds(value: int) -> datetime:
    return _EPOCH + timedelta(microseconds=value // 1000)


def to_nanoseconds(value: datetime) -> int:
    """Raises UnstorableContentError for a time without a time zone."""
    if value.tzinfo is None:
        raise UnstorableContentError(f"times are aware: {value} has no time zone")
    return _span(value - _EPOCH)


def _span(value: timedelta) -> int:
    nanoseconds = (value.days * 86_400 + value.seconds) * NANOSECONDS + value.microseconds * 1000
    if abs(nanoseconds) >= 2**63:
        raise UnstorableContentError(f"a store counts nanoseconds, up to the year 2262 or 292 years: not {value}")
    return nanoseconds


def text_of(written: Any) -> str | None:
    """What a column says, if every store could keep it: people write into tables, and SQLite takes anything."""
    try:
        refuse_bad_text("text", written)
    except UnstorableContentError:
        return None
    return str(written)


def refuse_bad_text(name: str, text: str) -> None:
    """Raises UnstorableContentError for what no column of a text can keep."""
    if type(text) is not str:
        raise UnstorableContentError(f"a message's {name} is a text, not a {type(text).__name__}")
    fault = fault_of(text)
    if fault is not None:
        raise UnstorableContentError(f"a message's {name} {fault}")
