"""Parts: cuts a held batch into ranges. The task that works on a range reads it from the store itself.

`format("homing")` would read the same. But for a data source Spark starts further Python processes, which it asks for
the name, the schema and the plan, and it takes the messages through the JVM. That would be half of a short job's time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from homing.delivery.arrow.page import Page
from homing.delivery.leased_part import LeasedPart
from homing.scans import Condition
from homing.spark.columns import STORED_DDL
from homing.spark.options import StoreAddress
from homing.spark.reader import Range, read_range

Batches = Iterator[pa.RecordBatch]


@dataclass(frozen=True)
class Parts:
    """A held batch as ranges. It is sent to the executors, so it holds names and no open connections."""

    address: StoreAddress
    ranges: tuple[Range, ...]
    #: Whether settlements wrote what is read: see `Page`.
    copies: bool

    @classmethod
    def of(cls, address: StoreAddress, held: LeasedPart, number: int, ids: tuple[str, str] | None) -> Parts:
        """What is held there in at most so many ranges; with `ids`, only from the first to the second of them."""
        only = () if ids is None else (Condition("id", ">=", ids[0]), Condition("id", "<=", ids[1]))
        which = (*held.conditions, *only)
        ranges = held.store.scans().batch_ranges(held.lease, number)
        return cls(address, tuple(Range(after, upto, which) for after, upto in ranges), held.copies)

    def _read(self, part: Range) -> Iterator[Page]:
        return read_range(self.address, part, copies=self.copies)

    def read(self, spark: SparkSession) -> DataFrame:
        """The messages as they are in the store."""
        return self.through(spark, lambda pages: (page.batch for page in pages), STORED_DDL)

    def through(self, spark: SparkSession, work: Callable[[Iterator[Page]], Batches], schema: str) -> DataFrame:
        """What `work` makes of the messages, part by part."""

        def run(numbers: Batches) -> Batches:
            mine = [self.ranges[number.as_py()] for batch in numbers for number in batch.column(0)]
            return work(page for part in mine for page in self._read(part))

        number = len(self.ranges)
        return spark.range(0, number, 1, max(1, number)).mapInArrow(run, schema)
