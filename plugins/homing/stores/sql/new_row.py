"""The values to insert for a message."""

from __future__ import annotations

import zlib
from typing import Any

from homing import message as m
from homing.errors import UnstorableContentError
from homing.message import Message
from homing.row import MOST_CHARACTERS, envelope, to_nanoseconds
from homing.stores.sql.header_columns import HeaderColumns
from homing.stores.validation import refuse_unfit

_DEFAULTS = {"priority": 0}  # of columns that hold something when nothing is said


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


def bucket_of(key: str, partitions: int) -> int:
    """The partition a key belongs to, for all processes and for ever the same."""
    return zlib.crc32(key.encode("utf-8")) % partitions
