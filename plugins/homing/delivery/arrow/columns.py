"""The Arrow columns of messages: as they come out of a store, and as the source flow leaves them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa

#: A row of a store, as the data source yields it.
STORED = pa.schema(
    [
        pa.field("sequence", pa.int64()),
        pa.field("id", pa.string()),
        pa.field("priority", pa.int32()),
        pa.field("time_scheduled", pa.int64()),
        pa.field("time_next", pa.int64()),
        pa.field("epoch", pa.int32()),
        pa.field("crashes", pa.int32()),
        pa.field("time_created", pa.int64()),
        pa.field("message", pa.string()),
        pa.field("encoding", pa.string()),
        pa.field("content_type", pa.string()),
        pa.field("headers", pa.string()),
        pa.field("correlation_id", pa.string()),
        pa.field("session_id", pa.string()),
        pa.field("partition_key", pa.string()),
        pa.field("subject", pa.string()),
        pa.field("recipient", pa.string()),
        pa.field("reply_to", pa.string()),
        pa.field("time_to_live", pa.int64()),
        pa.field("lock_token", pa.string()),
        pa.field("batch_id", pa.string()),
        pa.field("dead_letter_reason", pa.string()),
        pa.field("dead_letter_description", pa.string()),
        pa.field("dead_letter_source", pa.string()),
        pa.field("table_id", pa.string()),
    ]
)

#: A message after the source flow: its row with the content the flow made of it, and the context's properties.
PROCESSED = pa.schema([*STORED, pa.field("properties", pa.string())])

#: What a destination step reports back: how many messages ended in which state.
TALLY = pa.schema([pa.field("state", pa.string()), pa.field("messages", pa.int64())])

#: The encoding of a row that has values of other types than its columns should have. Its text says which.
UNFIT = "unfit"
#: What Arrow raises for a value of another type than its column's.
DOES_NOT_FIT = (pa.ArrowException, TypeError, ValueError, OverflowError)


def to_batch(rows: Iterable[Mapping[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    """An Arrow batch of these rows; keys the schema does not have are left out.

    A row that does not fit, which only other programs that write into the table can make, becomes unreadable alone.
    """
    rows = list(rows)
    try:
        return _to_batch(rows, schema)
    except DOES_NOT_FIT:
        return _to_batch([_fitted(row, schema) for row in rows], schema)


def _to_batch(rows: list[Any], schema: pa.Schema) -> pa.RecordBatch:
    columns = [pa.array([row[name] for row in rows], type=schema.field(name).type) for name in schema.names]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _fitted(row: Mapping[str, Any], schema: pa.Schema) -> dict[str, Any]:
    fitted, faults = dict(row), []
    for field in schema:
        try:
            pa.scalar(row[field.name], type=field.type)
        except DOES_NOT_FIT:  # whose text has the value, and Spark would log it
            faults.append(f"{field.name}: a {type(row[field.name]).__name__} that is not a {field.type}")
            fitted[field.name] = None
    if faults:
        fitted.update(encoding=UNFIT, message="; ".join(faults))
    return fitted


def rows_of(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    names, empty = batch.schema.names, [None] * batch.num_rows
    # Most columns of most batches are empty, and need not be turned into Python objects one by one.
    columns = [empty if column.null_count == batch.num_rows else column.to_pylist() for column in batch.columns]
    for values in zip(*columns, strict=True):
        yield dict(zip(names, values, strict=True))
