"""Smaller parts: makes it cheap to run a plan over many small parts of a batch.

A call for a few messages takes as long as the Spark jobs it starts, however little these do. So the messages are read
once for all small parts. What comes out of a small part is fetched to this process by the job that makes it, and kept
together with what comes out of others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property
from types import TracebackType

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from homing.delivery.arrow.columns import PROCESSED
from homing.delivery.leased_part import LeasedMessage
from homing.portions import MOST_BYTES
from homing.spark import dataframe_handlers
from homing.spark.columns import PROCESSED_DDL

#: How many messages a small part has at most.
SMALL = 100

#: Runs a plan and gives back its result, to be read any number of times.
Keep = Callable[[DataFrame, dataframe_handlers.RowCounter], DataFrame]


class Parted:
    """Messages, of which parts are taken; a part is all messages from one id to another.

    A context manager: at the end of the block, Spark forgets the messages that it has cached.
    """

    def __init__(self, messages: DataFrame, number: int) -> None:
        self._messages = messages
        self._number = number
        self._made = False

    def __enter__(self) -> Parted:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._made:
            self._cached.unpersist()

    def part(self, some: Sequence[LeasedMessage]) -> DataFrame:
        """These of the messages. They are read anew for all of them, and once for all smaller parts."""
        if len(some) == self._number:
            return self._messages
        mine = self._cached.where(F.col("id").between(some[0].message_id, some[-1].message_id))
        # Of as many tasks as there are of all messages, most would find nothing to do.
        return mine.coalesce(1) if len(some) <= SMALL else mine

    def is_small(self, some: Sequence[LeasedMessage]) -> bool:
        """Whether these are so few, and so light, that what comes of them may be held in this process."""
        return len(some) < min(SMALL + 1, self._number) and len(some) * self._longest <= MOST_BYTES

    @cached_property
    def _cached(self) -> DataFrame:
        self._made = True
        return self._messages.cache()

    @cached_property
    def _longest(self) -> int:
        """How many bytes the longest content has."""
        row = self._cached.agg(F.max(F.octet_length("message")).alias("bytes")).first()
        return 0 if row is None else row["bytes"] or 0


class Result:
    """What came out of a part, and how often each id is in it."""

    def __init__(self, kept: DataFrame | pa.Table, ids: pa.ChunkedArray) -> None:
        self.kept = kept
        self.ids = Counter[str](ids.to_pylist())


class Results:
    """What came out of all parts.

    The output of small parts is put into frames together: the more frames, the slower is every plan made of them all.
    """

    def __init__(self, spark: SparkSession, keep: Keep) -> None:
        self._spark = spark
        self._keep = keep
        self._frames: list[DataFrame] = []
        self._tables: list[pa.Table] = []

    def of(self, plan: DataFrame, counter: dataframe_handlers.RowCounter, *, small: bool) -> Result:
        """Runs the plan over a part."""
        if small:
            table = plan.toArrow().cast(PROCESSED)
            return Result(table, table.column("id"))
        frame = self._keep(plan, counter)
        return Result(frame, frame.select("id").toArrow().column("id"))

    def add(self, result: Result) -> None:
        """Keeps it, with those before."""
        if isinstance(result.kept, DataFrame):
            self._frames.append(result.kept)
            return
        self._tables.append(result.kept)
        if sum(table.nbytes for table in self._tables) > MOST_BYTES:
            self._keep_tables()

    def frames(self) -> list[DataFrame]:
        """All that was added."""
        self._keep_tables()
        return self._frames

    def _keep_tables(self) -> None:
        together = pa.concat_tables(self._tables) if self._tables else None
        self._tables = []
        if together is not None and together.num_rows:
            counter = dataframe_handlers.RowCounter()
            frame = self._spark.createDataFrame(together, PROCESSED_DDL)
            self._frames.append(self._keep(counter.end(frame), counter))
