"""Pages: messages on their way from a store into a chain, as the database's driver gives them and as Arrow columns.

A chain works on the rows, and the columns that it does not change go on as they are: neither is made from the other,
which would cost more than most handlers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from homing.delivery import records
from homing.errors import UnreadableMessageError
from homing.ledger import Entry
from homing.pipeline import MessageContext
from homing.spark.columns import DOES_NOT_FIT, STORED, UNFIT, rows_of, to_batch
from homing.stores.sql.rows import PLAIN, READ, read

#: The columns of a row, in this order. Messages that have nothing beyond PLAIN come with that, None, and their batch.
ROW = (*READ, "batch_id")
_SEQUENCE, _ID, _TYPE, _ENCODING, _TOKEN, _MESSAGE = map(
    ROW.index, ("sequence", "id", "content_type", "encoding", "lock_token", "message")
)
_BATCH = -1
_WHOLE = len(ROW)
_EMPTY = dict.fromkeys(READ)

Row = tuple[Any, ...]


class Page(NamedTuple):
    """The same messages twice: as rows, and as a batch of STORED columns."""

    rows: Sequence[Row]
    batch: pa.RecordBatch

    @classmethod
    def of_rows(cls, rows: Sequence[Row]) -> Page:
        """These rows, all with the same columns. One that does not fit its columns becomes unreadable alone."""
        values = list(zip(*rows, strict=True))
        columns = dict(zip(READ if len(values) == _WHOLE else PLAIN, values, strict=False))
        columns["batch_id"] = values[_BATCH]
        try:
            arrays = [
                pa.array(columns[field.name], type=field.type)
                if field.name in columns
                else pa.nulls(len(rows), field.type)
                for field in STORED
            ]
            return cls(rows, pa.RecordBatch.from_arrays(arrays, schema=STORED))
        except DOES_NOT_FIT:
            return cls.of_batch(to_batch([as_dict(row) for row in rows], STORED))

    @classmethod
    def of_batch(cls, batch: pa.RecordBatch) -> Page:
        return cls([tuple([row[name] for name in ROW]) for row in rows_of(batch)], batch)


def as_dict(row: Row) -> dict[str, Any]:
    names = READ if len(row) == _WHOLE else PLAIN
    return {**_EMPTY, **dict(zip(names, row, strict=False)), "batch_id": row[_BATCH]}


def claims_failure(row: Row) -> bool:
    """Whether this row says it is the record of a failure."""
    return len(row) == _WHOLE and bool(row[_TYPE] == records.FAILURE_TYPE)


def subject(row: Row) -> records.Subject:
    """What this row is about: itself, or the message whose failure it records."""
    if claims_failure(row):
        return records.subject(as_dict(row))
    return records.Subject(row[_ID], row[_BATCH] or "", row[_SEQUENCE])


def message_id(row: Row) -> str:
    """The id of what this row is about."""
    return subject(row).message_id if claims_failure(row) else row[_ID]


def entry(row: Row, flow: str, state: str) -> Entry:
    """What the ledger is to know of it."""
    return subject(row).entry(flow, state)


def begin(row: Row) -> MessageContext:
    """The message a chain starts from. Raises UnreadableMessageError."""
    if row[_ENCODING] == UNFIT:
        raise UnreadableMessageError(f"message {row[_ID]} has values its columns do not allow: {row[_MESSAGE]}")
    if claims_failure(row):
        origin = records.origin_of(as_dict(row))
        return MessageContext(origin.message, origin.properties)
    return MessageContext(read(row[:-1], row[_TOKEN]))
