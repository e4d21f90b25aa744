"""A DataFrame as messages of a store: stored in bulk, durable when a task ends, idempotent by id."""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import MapType, StringType, StructType

from homing.delivery.arrow.columns import STORED, rows_of
from homing.errors import ConfigurationError, UnsupportedError
from homing.ids import new_id
from homing.message import TEXT, Message, decode, decode_headers, encode, encode_json
from homing.portions import portions
from homing.size_limit import weight
from homing.spark.options import StoreAddress
from homing.store import BULK, DEDUPLICATION

log = logging.getLogger(__name__)

_CHUNK = 5_000
_TEXTS = ("content_type", "correlation_id", "session_id", "partition_key", "subject", "reply_to")


@dataclass
class Stored(WriterCommitMessage):
    """How many messages a task stored."""

    messages: int


class _Writing:
    """What both writers do with a task's rows.

    The column `message` is the content: a text (with the column `encoding` if it is not plain text), or a struct, map,
    array, number or binary. Other columns may be `id`, `headers` (a map, or JSON as text), `content_type`,
    `correlation_id`, `session_id`, `partition_key`, `subject`, `recipient`, `reply_to`, `priority` and `time_to_live`
    (nanoseconds). The further columns of a DataFrame that was read from a store are ignored, so that one store can be
    copied into another.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        self._address = StoreAddress.of(options)
        if overwrite:
            raise ConfigurationError('cannot overwrite a store, only add to it: use mode("append")')
        unknown = [name for name in schema.names if name not in STORED.names]
        if "message" not in schema.names or unknown:
            raise ConfigurationError(
                f"messages are written from the column `message` and, if wanted, {', '.join(STORED.names)}; "
                f"this DataFrame has {', '.join(schema.names)}"
            )
        headers = schema["headers"].dataType if "headers" in schema.names else None
        if headers is not None and not isinstance(headers, (StringType, MapType)):
            raise ConfigurationError(f"the column `headers` must be a map or JSON text, got {headers.simpleString()}")
        self._has_ids = "id" in schema.names
        # Names the job, so that ids made for rows without one are the same in every try of a task.
        self._job = new_id()

    def _store(self, batches: Iterator[pa.RecordBatch]) -> Stored:
        context = TaskContext.get()
        part = 0 if context is None else context.partitionId()
        seen: Counter[str] = Counter()
        stored = 0
        with self._address.open() as store:
            if BULK not in store.features:
                raise UnsupportedError(
                    f"store {store.name!r} cannot be written by Spark: it lacks the ability {BULK!r}"
                )
            if DEDUPLICATION not in store.features:
                log.warning("store %r may take the messages of a task that is tried again twice", store.name)
            for batch in batches:
                messages = (self._message(row, part, seen) for row in _rows(batch))
                for portion in portions(messages, weight, most=_CHUNK):
                    store.store_many(portion)
                    stored += len(portion)
        return Stored(stored)

    def _message(self, row: dict[str, Any], part: int, seen: Counter[str]) -> Message:
        message_id = row.get("id")
        content = _content(row)
        headers = _headers(row)
        if message_id is None:
            message_id = self._new_id(content, headers, part, seen)
        span = row.get("time_to_live")
        texts: dict[str, Any] = {name: row[name] for name in _TEXTS if row.get(name) is not None}
        return Message(
            message_id,
            content,
            headers=headers,
            to=row.get("recipient"),
            priority=row.get("priority") or 0,
            time_to_live=None if span is None else timedelta(microseconds=span // 1000),
            **texts,
        )

    def _new_id(self, content: Any, headers: dict[str, Any], part: int, seen: Counter[str]) -> str:
        """Made from what the message says: a task that is tried again may see its rows in another order."""
        written = encode(content)
        text = f"{self._job}/{part}/{written.encoding}/{encode_json(headers)}/{written.body}"
        digest = hashlib.sha256(text.encode()).hexdigest()
        seen[digest] += 1  # equal rows are as many messages
        return f"{digest[:48]}-{seen[digest]}"


def _rows(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    nested = [field for field in batch.schema if pa.types.is_nested(field.type)]
    for row in rows_of(batch):
        yield {**row, **{field.name: _plain(row[field.name], field.type) for field in nested}}


def _plain(value: Any, kind: pa.DataType) -> Any:
    """A value of this type as JSON has it. Arrow gives a map as a list of pairs, so that an empty one looks like an
    empty array."""
    if value is None:
        return None
    if pa.types.is_map(kind):
        return {key: _plain(item, kind.item_type) for key, item in value}
    if pa.types.is_struct(kind):
        return {field.name: _plain(value[field.name], field.type) for field in kind}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [_plain(item, kind.value_type) for item in value]
    return value


def _content(row: dict[str, Any]) -> Any:
    value, encoding = row["message"], row.get("encoding")
    if isinstance(value, str) and encoding is not None and encoding != TEXT:
        return decode(encoding, value, row.get("id") or "?")
    return value


def _headers(row: dict[str, Any]) -> dict[str, Any]:
    headers = row.get("headers")
    if headers is None:
        return {}
    return decode_headers(headers, row.get("id") or "?") if isinstance(headers, str) else headers


class StoreWriter(_Writing, DataSourceArrowWriter):
    """`df.write.format("homing").option("url", …).mode("append").save()`. See _Writing for the columns.

    A task that is tried again stores nothing twice where the store has the ability `deduplication`: it takes each id
    once, and a row without one gets an id made from its content. Other stores may take a message twice, under the same
    id; the task's log warns of it. A job that fails leaves stored what its tasks have stored; run again with ids, it
    adds the rest.
    """

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Stored:
        return self._store(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        log.info("%d messages were stored", _sum(messages))


class StoreStreamWriter(_Writing, DataSourceStreamArrowWriter):
    """`df.writeStream.format("homing").option("url", …).start()`. The DataFrame needs a column `id`: only by it is a
    micro-batch that is done again known to be the same."""

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        super().__init__(options, schema, overwrite=overwrite)
        if not self._has_ids:
            raise ConfigurationError(
                "a stream is written from a DataFrame with a column `id`: else it could be stored twice"
            )

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Stored:
        return self._store(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        log.info("micro-batch %d: %d messages were stored", batchId, _sum(messages))


def _sum(messages: list[WriterCommitMessage | None]) -> int:
    return sum(message.messages for message in messages if isinstance(message, Stored))
