"""Page: messages read from a store for a chain, both as the rows of the database's driver and as Arrow columns.

A chain works on the rows. Columns that it does not change go on as they are. To make columns from the rows, or rows
from the columns, would cost more than most handlers do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from homing.delivery import records
from homing.delivery.arrow.columns import DOES_NOT_FIT, STORED, UNFIT, rows_of, to_batch
from homing.errors import UnreadableMessageError
from homing.ledger import FAILED, SOURCE_FLOW, Entry
from homing.message import Message, MessageRef
from homing.pipeline import MessageContext
from homing.pipeline_store import PipelineStore
from homing.row import PLAIN, READ, envelope, read
from homing.scans import ALL, Condition

#: The columns of a row, in this order. Messages that have nothing beyond PLAIN come with that, None, and the last two.
ROW = (*READ, "table_id", "batch_id")
_SEQUENCE, _ID, _TYPE, _ENCODING, _TOKEN, _MESSAGE, _HEADERS = map(
    ROW.index, ("sequence", "id", "content_type", "encoding", "lock_token", "message", "headers")
)
_TABLE, _BATCH = -2, -1
_WHOLE = len(ROW)
_EMPTY = dict.fromkeys(READ)
_PAGE = 4_000  # messages that are read at once

Row = tuple[Any, ...]


class Page(NamedTuple):
    """Some messages of a store in two forms: as rows, and as a batch of STORED columns.

    `copies` says that they come from a failure store or dead-letter store. Only there is a failure record believed.
    """

    rows: Sequence[Row]
    batch: pa.RecordBatch
    copies: bool = False

    @classmethod
    def of_rows(cls, rows: Sequence[Row], *, copies: bool = False) -> Page:
        """These rows, all with the same columns. One that does not fit its columns becomes unreadable alone."""
        values = list(zip(*rows, strict=True))
        columns = dict(zip(READ if len(values) == _WHOLE else PLAIN, values, strict=False))
        columns["table_id"], columns["batch_id"] = values[_TABLE], values[_BATCH]
        try:
            arrays = [
                pa.array(columns[field.name], type=field.type)
                if field.name in columns
                else pa.nulls(len(rows), field.type)
                for field in STORED
            ]
            return cls(rows, pa.RecordBatch.from_arrays(arrays, schema=STORED), copies)
        except DOES_NOT_FIT:
            return cls.of_batch(to_batch([_as_dict(row) for row in rows], STORED), copies=copies)

    @classmethod
    def of_batch(cls, batch: pa.RecordBatch, *, copies: bool = False) -> Page:
        return cls([tuple([row[name] for name in ROW]) for row in rows_of(batch)], batch, copies)

    def about(self, row: Row) -> Entry:
        """Returns the entry to record if the message that this row is about fails."""
        if self.is_record(row):
            return records.about(_as_dict(row), copies=True)
        return Entry(
            MessageRef.of(row[_TABLE], row[_SEQUENCE], row[_ID]), SOURCE_FLOW, FAILED, batch_id=row[_BATCH] or ""
        )

    def begin(self, row: Row) -> MessageContext:
        """The message a chain starts from. Raises UnreadableMessageError."""
        if row[_ENCODING] == UNFIT:
            raise UnreadableMessageError(f"message {row[_ID]} has values its columns do not allow: {row[_MESSAGE]}")
        if self.is_record(row):
            origin = records.origin_of(_as_dict(row), copies=True)
            return MessageContext(origin.message, origin.properties)
        return MessageContext(read(row[:_TABLE], row[_TOKEN]))

    def is_record(self, row: Row) -> bool:
        """Whether this row may be a failure record. It does not look at the content."""
        return self.copies and records.may_hold_record(row[_TYPE] if len(row) == _WHOLE else None, row[_HEADERS])

    def unwrapped(self, row: Row, message: Message) -> dict[str, Any]:
        """The row of the message whose failure this row records, its content left out."""
        about = self.about(row)
        table_id, sequence, message_id = about.ref
        named = {"id": message_id, "sequence": sequence, "table_id": table_id, "batch_id": about.batch_id}
        return {**_as_dict(row), **envelope(message), **named}


def read_pages(
    store: PipelineStore,
    after: int,
    upto: int,
    *,
    which: str = ALL,
    conditions: Sequence[Condition] = (),
    copies: bool = False,
) -> Iterator[Page]:
    """The messages of this store with sequence numbers in (after, upto]."""
    found = store.scans().message_pages(after, upto, which=which, conditions=conditions, page=_PAGE)
    return (Page.of_rows(rows, copies=copies) for rows in found)


def _as_dict(row: Row) -> dict[str, Any]:
    names = READ if len(row) == _WHOLE else PLAIN
    return {**_EMPTY, **dict(zip(names, row, strict=False)), "table_id": row[_TABLE], "batch_id": row[_BATCH]}
