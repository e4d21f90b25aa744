"""The values to insert for a message."""

from __future__ import annotations

from typing import Any

from homing import message as m
from homing.errors import UnstorableContentError
from homing.message import Message
from homing.row import envelope, explanation, to_nanoseconds
from homing.stores.sql.header_columns import HeaderColumns
from homing.stores.validation import partition_of, partition_of_key, refuse_unfit

_DEFAULTS = {"priority": 0}  # of columns that hold something when nothing is said


def to_row(message: Message, now: int, *, partitions: int = 0, columns: HeaderColumns | None = None) -> dict[str, Any]:
    """The values to insert, where they are not the column's default; raises UnstorableContentError for what cannot be
    stored."""
    refuse_unfit(message)
    if not -(2**31) <= message.priority < 2**31:
        raise UnstorableContentError(
            f"priority of a message must be an integer of 32 bits, got {message.priority!r:.60}"
        )
    row = plain_row(message.id, message.content, now, partitions=0)
    if message.scheduled_at is not None:
        row["time_scheduled"] = to_nanoseconds(message.scheduled_at)
        row["time_next"] = max(row["time_scheduled"], 1)
    said = {
        **envelope(message),
        "dead_letter_reason": explanation(message.dead_letter_reason),
        "dead_letter_description": explanation(message.dead_letter_description),
        "dead_letter_source": message.dead_letter_source,
    }
    row.update((name, value) for name, value in said.items() if value is not None and value != _DEFAULTS.get(name))
    if partitions:
        row["bucket"] = partition_of(message, partitions)
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
        row["bucket"] = partition_of_key(message_id, partitions)
    return row
