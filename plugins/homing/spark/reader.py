"""Reading a store as a DataFrame, in Arrow batches. Reading has no side effect."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
)

from homing.delivery.arrow.columns import STORED
from homing.delivery.arrow.page import Page, read_pages
from homing.errors import ConfigurationError
from homing.failure import FAILURE_STORE
from homing.scans import ALL, DEAD, WAITING, Condition, held_by
from homing.spark.options import StoreAddress, number

_DEFAULT_PARTITIONS = 2
_FAILED = "failed"
_MOST_VALUES = 500

_COMPARED = {EqualTo: "=", LessThan: "<", LessThanOrEqual: "<=", GreaterThan: ">", GreaterThanOrEqual: ">="}
# A database may order other texts than Spark does; then it must not leave out what Spark would keep.
_ORDERED = {field.name for field in STORED if pa.types.is_integer(field.type)} | {"id"}
_LONG_TEXTS = {"message", "headers", "dead_letter_reason", "dead_letter_description"}


@dataclass(frozen=True)
class Range(InputPartition):
    """A part of a store: the sequence numbers in (after, upto]."""

    after: int
    upto: int
    conditions: tuple[Condition, ...] = ()


class StoreReader(DataSourceReader):
    """`spark.read.format("homing").option("url", …).load()`: messages of a store, leased or not.

    Options: `messages`: "waiting" (the default: all that are not finished), "failed" (those that wait in the pipeline's
    failure store for their replay), "dead" (kept aside by the store) or "all"; or `batch`, the id of a claimed batch,
    for what it holds. `partitions`, into how many parts to cut it (2).
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self._address = StoreAddress.of(options)
        self._batch_id = options.get("batch")
        self._which = options.get("messages", ALL if self._batch_id else WAITING)
        if self._which not in (WAITING, _FAILED, DEAD, ALL):
            raise ConfigurationError(
                f'the option "messages" must be one of {WAITING}, {_FAILED}, {DEAD}, {ALL}, got {self._which!r}'
            )
        if self._which == _FAILED:
            with self._address.open_sql("cannot be read by Spark") as store:
                self._address = StoreAddress(self._address.url, f"{store.name}{FAILURE_STORE}")
            self._which = WAITING
        self._parts = number(options, "partitions", _DEFAULT_PARTITIONS) or 1
        self._conditions: tuple[Condition, ...] = ()

    def partitions(self) -> Sequence[InputPartition]:
        with self._address.open_sql("cannot be read by Spark") as store:
            if self._batch_id:
                lease = store.held_batch(self._batch_id)
                if lease is None:
                    return []
                held = (*held_by(lease), *self._conditions)
                return [Range(after, upto, held) for after, upto in store.scans().batch_ranges(lease, self._parts)]
            span = store.scans().span(self._which, self._conditions)
        return [] if span is None else cut(span[0] - 1, span[1], self._parts, self._conditions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, Range):  # Spark makes another of no partitions at all
            yield from (page.batch for page in read_range(self._address, partition, self._which))


class FilteringStoreReader(StoreReader):
    """A StoreReader that filters in the store.

    For sessions in which `spark.sql.python.filterPushdown.enabled` is set: in others, Spark refuses such a reader.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Has the database leave out what it can. Spark looks again: it is the one who knows how texts compare."""
        self._conditions = tuple(filter(None, map(as_condition, filters)))
        return filters


def read_range(address: StoreAddress, part: Range, which: str = ALL, *, copies: bool = False) -> Iterator[Page]:
    with address.open_sql("cannot be read by Spark") as store:
        yield from read_pages(store, part.after, part.upto, which=which, conditions=part.conditions, copies=copies)


def cut(after: int, upto: int, parts: int, conditions: tuple[Condition, ...] = ()) -> list[InputPartition]:
    """Cuts the numbers in (after, upto] into at most so many ranges of the same width."""
    width = max(1, -(-(upto - after) // parts))
    return [Range(start, min(start + width, upto), conditions) for start in range(after, upto, width)]


def as_condition(asked: Filter) -> Condition | None:
    """What the database can do of a filter without leaving out a row that passes it; None for nothing."""
    attribute: tuple[str, ...] = getattr(asked, "attribute", ())
    if len(attribute) != 1 or attribute[0] not in STORED.names or attribute[0] in _LONG_TEXTS:
        return None
    column = attribute[0]
    if isinstance(asked, IsNull):
        return Condition(column, "is null")
    if isinstance(asked, IsNotNull):
        return Condition(column, "is not null")
    if isinstance(asked, In) and len(asked.value) <= _MOST_VALUES:
        return Condition(column, "in", tuple(asked.value))
    operator = _COMPARED.get(type(asked))
    if operator is None or (operator != "=" and column not in _ORDERED):
        return None
    return Condition(column, operator, asked.value)  # type: ignore[attr-defined]
