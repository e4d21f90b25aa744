"""A stored message as a row: the columns it is read from, and the Message in them.

This is what batches are handed to delivery and Spark as, and what the data source shows. Times are Unix nanoseconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from typing import Any

from homing import message as m
from homing.errors import UnreadableMessageError, UnstorableContentError
from homing.json_values import is_unicode
from homing.message import LEASED, TEXT, Message, decode

NANOSECONDS = 1_000_000_000

#: How many characters a column of a short text has room for.
MOST_CHARACTERS = 255

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)

#: What claiming needs to know of a row.
NEEDED = ("sequence", "time_next", "epoch", "crashes", "lock_token", "time_scheduled", "time_to_live")
#: What most messages leave empty, by its column and its field.
RARE = {
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
READ = (*PLAIN, *RARE)
#: The place of the headers in READ and in PLAIN.
HEADERS = READ.index("headers")
_NUMBERS = {"sequence", "epoch", "crashes", "priority", *(name for name in READ if name.startswith("time_"))}
_TEXTS = frozenset({str, type(None)})
_new, _set = object.__new__, object.__setattr__


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
        "time_to_live": None if message.time_to_live is None else span(message.time_to_live),
    }


def read(row: tuple[Any, ...], lock_token: str | None, more: int = 0) -> Message:
    """The Message in these values of READ, or of PLAIN when it has no others, delivered `more` times than they say.

    Raises UnreadableMessageError when they cannot be decoded, or are not what their columns are for.
    """
    sequence, _, epoch, _, _, scheduled, life, created, priority, message_id, body, encoding, headers, *rare = row
    numbers = type(epoch) is type(scheduled) is type(created) is type(priority) is int
    if not (numbers and type(message_id) is type(body) is str):
        raise UnreadableMessageError(faults(row))
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
            raise UnreadableMessageError(faults(row))
        fields.update(zip(RARE.values(), rare, strict=False))
        fields["time_to_live"] = None if life is None else timedelta(microseconds=life // 1000)
    message = _new(Message)
    # The same as Message(...), which sets its frozen fields one by one: this is done for every message claimed.
    _set(message, "__dict__", fields)
    return message


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


def faults(row: tuple[Any, ...], names: Sequence[str] = READ) -> str:
    """What in these values, of READ if not said otherwise, is not what its column is for.

    SQLite lets people write anything into any column. The values themselves are not for a log.
    """
    wrong = [
        f"{name} is {'not UTF-8' if isinstance(value, bytes) and _kind(name) is str else type(value).__name__}"
        for name, value in zip(names, row, strict=False)
        if value is not None and type(value) is not _kind(name)
    ]
    return f"message {row[names.index('id')]!s} has values its columns are not for: {', '.join(wrong)}"


def _kind(name: str) -> type:
    return int if name in _NUMBERS else str


@lru_cache(maxsize=1024)  # messages stored together share their times
def from_nanoseconds(value: int) -> datetime:
    return _EPOCH + timedelta(microseconds=value // 1000)


def to_nanoseconds(value: datetime) -> int:
    """Raises UnstorableContentError for a time without a time zone."""
    if value.tzinfo is None:
        raise UnstorableContentError(f"{value} has no time zone: give an aware datetime")
    return span(value - _EPOCH)


def span(value: timedelta) -> int:
    nanoseconds = (value.days * 86_400 + value.seconds) * NANOSECONDS + value.microseconds * 1000
    if abs(nanoseconds) >= 2**63:
        raise UnstorableContentError(
            f"{value} is out of range: a store counts nanoseconds, up to the year 2262, or 292 years"
        )
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
        raise UnstorableContentError(f"{name} of a message must be a text, got a {type(text).__name__}")
    fault = fault_of(text)
    if fault is not None:
        raise UnstorableContentError(f"a message's {name} {fault}")


def explanation(text: str | None) -> str | None:
    """A reason or description of a dead letter, which people read, as every database can keep it: an error's text may
    quote anything, and must not keep its message from being dead-lettered."""
    return None if text is None else text.replace("\0", "\N{REPLACEMENT CHARACTER}")


def is_keepable(text: str) -> bool:
    """Whether databases can hold these characters at all: PostgreSQL takes no NUL, none of them a lone surrogate."""
    return "\0" not in text and is_unicode(text)


def fault_of(text: str) -> str | None:
    """Why a column of a short text cannot keep this one, which is not repeated; None when it can."""
    if len(text) > MOST_CHARACTERS:
        return f"has {len(text)} characters, more than {MOST_CHARACTERS}"
    return None if is_keepable(text) else "holds a NUL or a lone surrogate, which not every store can keep"
