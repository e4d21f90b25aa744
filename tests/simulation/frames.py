"""Spark as the product's jobs see it: plans of DataFrames, run part by part, each part by an executor of its own.

An executor is a process, so it takes turns, dies and is stopped like any other, and leaves its driver behind. Only what
the product asks of Spark is here.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import reduce
from operator import xor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as spark_functions
from pyspark.sql.types import StringType

import homing.spark.engine  # noqa: F401 - a job loads it on use, and it is to be found here before
from homing.delivery.arrow.columns import PROCESSED, STORED, TALLY
from homing.spark import sessions
from homing.spark.columns import PROCESSED_DDL, STORED_DDL, TALLY_DDL
from homing.spark.submit import master
from tests.simulation.hub import Process
from tests.simulation.virtual import Here, replace

Row = dict[str, Any]
Batches = Iterator[pa.RecordBatch]

_SCHEMAS = {STORED_DDL: STORED, PROCESSED_DDL: PROCESSED, TALLY_DDL: TALLY}
#: Into how many parts a batch is cut.
_PARTS = 2
_ATTEMPTS = 1, 2


class SparkError(Exception):
    """What a driver hears of its executors."""


@dataclass(eq=False)
class Part:
    """How to make one part of a plan's rows. Where the plan is cached, they are made once: an executor that dies in the
    middle leaves nothing behind, and what one has made outlives it."""

    make: Callable[[], Batches]
    cached: bool = False
    kept: list[pa.RecordBatch] | None = None

    def __call__(self) -> Batches:
        if not self.cached:
            return self.make()
        if self.kept is None:
            self.kept = list(self.make())
        return iter(self.kept)


@dataclass
class Executor:
    """What an executor's process is about: the try of a task whose driver has started it. What runs there takes it for
    Spark's TaskContext."""

    task: Any
    stage: int
    place: int
    attempt: int

    @property
    def pipeline(self) -> Any:
        return self.task.pipeline

    @property
    def run(self) -> Any:
        return self.task.run

    @property
    def run_id(self) -> str:
        return str(self.task.run_id)

    def stageId(self) -> int:  # noqa: N802 - Spark's names
        return self.stage

    def partitionId(self) -> int:  # noqa: N802
        return self.place

    def attemptNumber(self) -> int:  # noqa: N802
        return self.attempt


@dataclass(eq=False)
class Session:
    here: Here
    #: How often a part is tried: on one machine once, in a cluster again.
    attempts: int
    stages: int = 0
    #: Of each part of what is run now, those that were started for it one after the other.
    copies: list[list[Process]] = field(default_factory=list)
    cancelled: bool = False

    @property
    def conf(self) -> Any:
        return SimpleNamespace(get=lambda _name, default=None: default, set=lambda _name, _value: None)

    @property
    def read(self) -> Any:
        def schema(ddl: str) -> Any:
            return SimpleNamespace(options=lambda **_: SimpleNamespace(parquet=lambda *paths: self._files(paths, ddl)))

        return SimpleNamespace(schema=schema)

    def createDataFrame(self, table: pa.Table, ddl: str | None = None) -> Frame:  # noqa: N802
        made = table if ddl is None else table.cast(_SCHEMAS[ddl])
        return Frame(self, [lambda: iter(made.to_batches())], made.schema)

    def range(self, start: int, stop: int, _step: int, _parts: int) -> Frame:
        numbers = [pa.record_batch({"id": pa.array([number])}) for number in range(start, stop)]
        return Frame(self, [lambda one=one: iter([one]) for one in numbers], pa.schema([("id", pa.int64())]))

    def cancel(self) -> None:
        self.cancelled = True
        self._end_all()

    def run(self, parts: list[Part]) -> list[list[pa.RecordBatch]]:
        """What the parts come to. Raises SparkError when one of them fails, or the executor that has it dies, as often
        as it is tried. One that is not heard of is tried again while the first goes on, and outlives its driver."""
        self.stages += 1
        self.copies = [[] for _ in parts]
        for place, part in enumerate(parts):
            self._start(place, part)
        while True:
            self.here.wait(None, lambda: self._lost() is not None or all(map(_done, self.copies)))
            lost = self._lost()
            if lost is None:
                break
            failed = _failed(self.copies[lost][-1])
            if self.cancelled or len(self.copies[lost]) == self.attempts:
                self._end_all()
                raise SparkError("[SPARK_JOB_CANCELLED] the job was cancelled") if self.cancelled else failed
            self._start(lost, parts[lost])
        self._end_all()
        return [_done(copies)[0].strands[0].result for copies in self.copies]

    def _start(self, place: int, part: Part) -> None:
        hub, strand, copies = self.here.hub, self.here.strand(), self.copies[place]
        assert hub is not None
        assert strand is not None
        driver, attempt = strand.process, len(copies)
        executor = Process(f"{driver.name}/{place}.{attempt}", Executor(driver.about, self.stages, place, attempt))
        driver.children = [child for child in driver.children if child not in copies] + [executor]
        copies.append(executor)
        hub.start(executor, lambda: list(part()))

    def _lost(self) -> int | None:
        """The place of a part that is to be tried again, if it can be."""
        for place, copies in enumerate(self.copies):
            silent = copies[-1].stalled and len(copies) < self.attempts
            if not _done(copies) and (silent or _failed(copies[-1]) is not None):
                return place
        return None

    def _end_all(self) -> None:
        """When one fails, Spark ends the others that it knows of."""
        assert self.here.hub is not None
        for executor in (copies[-1] for copies in self.copies):
            if executor.alive:
                self.here.hub.kill(executor)

    def _files(self, paths: tuple[str, ...], ddl: str) -> Frame:
        """Found now and read later: those that are gone by then are an error."""
        missing = [path for path in paths if not Path(path).exists()]
        if missing:
            raise SparkError(f"[PATH_NOT_FOUND] Path does not exist: {missing[0]}")
        files = [sorted(Path(path).glob("*.parquet")) if Path(path).is_dir() else [Path(path)] for path in paths]

        def read(some: list[Path]) -> Batches:
            for file in some:
                yield from pq.read_table(file).to_batches()

        return Frame(self, [lambda some=some: read(some) for some in files], _SCHEMAS[ddl])


def _done(copies: list[Process]) -> list[Process]:
    """Those that have come to their end."""
    return [one for one in copies if not one.alive and _failed(one) is None]


def _failed(executor: Process) -> SparkError | None:
    error = executor.strands[0].error
    if executor.killed:
        return SparkError("Python worker exited unexpectedly (crashed)")
    return None if error is None else SparkError(f"{type(error).__module__}.{type(error).__qualname__}: {error}")


class Frame:
    """A plan: how to make its rows, part by part. Nothing is made before somebody asks for it."""

    def __init__(
        self,
        session: Session,
        parts: Sequence[Callable[[], Batches]],
        schema: pa.Schema,
        observed: tuple[Observed, ...] = (),
    ) -> None:
        self._session, self._schema, self._observed = session, schema, observed
        self._parts = [Part(part) for part in parts]

    columns = property(lambda self: self._schema.names)
    schema = property(lambda _: {"message": SimpleNamespace(dataType=StringType())})

    # -- plans -------------------------------------------------------------------------------------------------

    def mapInArrow(self, work: Callable[[Batches], Batches], ddl: str) -> Frame:  # noqa: N802
        return self._with([lambda part=part: work(part()) for part in self._parts], _SCHEMAS[ddl])

    def union(self, other: Frame) -> Frame:
        return Frame(self._session, [*self._parts, *other._parts], self._schema, (*self._observed, *other._observed))

    def coalesce(self, _number: int) -> Frame:
        return self._with([lambda: (batch for part in self._parts for batch in part())])

    def select(self, *names: str) -> Frame:
        schema = pa.schema([self._schema.field(name) for name in names])
        return self._each_row(lambda row: [{name: row[name] for name in names}], schema)

    def where(self, condition: Column) -> Frame:
        return self._each_row(lambda row: [row] if condition(row) else [])

    def join(self, other: Frame, on: str, _how: str) -> Frame:
        there = {row[on] for part in other._parts for batch in part() for row in batch.to_pylist()}
        return self._each_row(lambda row: [row] if row[on] in there else [])

    def withColumn(self, name: str, column: Column) -> Frame:  # noqa: N802
        return self.withColumns({name: column})

    def withColumns(self, columns: dict[str, Column]) -> Frame:  # noqa: N802
        new = [pa.field(name, pa.string()) for name in columns if name not in self.columns]
        return self._each_row(
            lambda row: [{**row, **{name: column(row) for name, column in columns.items()}}],
            pa.schema([*self._schema, *new]),
        )

    def observe(self, observed: Observed, *aggregates: Column) -> Frame:
        observed.aggregates = aggregates

        def count(place: int, part: Part) -> Batches:
            rows = []
            for batch in part():
                rows += batch.to_pylist()
                yield batch
            observed.rows[place] = rows  # of whoever comes to the end: Spark does not count what failed

        parts = enumerate(self._parts)
        frame = self._with([lambda place=place, part=part: count(place, part) for place, part in parts])
        frame._observed = (*self._observed, observed)
        return frame

    def agg(self, aggregate: Column) -> Frame:
        def over_all() -> Batches:
            rows = [row for part in self._parts for batch in part() for row in batch.to_pylist()]
            yield pa.RecordBatch.from_pylist([{aggregate.name: aggregate(rows)}], schema=made)

        made = pa.schema([(aggregate.name, pa.int64())])
        return self._with([over_all], made)

    def cache(self) -> Frame:
        """This very frame, as Spark does: plans that were made of it before use what is kept, too."""
        for part in self._parts:
            part.cached = True
        return self

    def unpersist(self) -> None:
        for part in self._parts:
            part.cached, part.kept = False, None

    # -- what has Spark run them -------------------------------------------------------------------------------

    def toArrow(self) -> pa.Table:  # noqa: N802
        return pa.Table.from_batches([batch for part in self._run() for batch in part], schema=self._schema)

    def collect(self) -> list[Row]:
        return list(self.toArrow().to_pylist())

    def first(self) -> Row | None:
        return next(iter(self.collect()), None)

    def count(self) -> int:
        return int(self.toArrow().num_rows)

    @property
    def write(self) -> Any:
        ready = SimpleNamespace(options=lambda **_: SimpleNamespace(parquet=self._write))
        return SimpleNamespace(mode=lambda _: ready)

    def _write(self, path: str) -> None:
        table = self.toArrow()
        Path(path).mkdir(parents=True, exist_ok=True)
        pq.write_table(table, f"{path}/part-0.parquet")

    def _run(self) -> list[list[pa.RecordBatch]]:
        done = self._session.run(self._parts)
        for one in self._observed:
            one.count()
        return done

    # -- inside ------------------------------------------------------------------------------------------------

    def _with(self, parts: Sequence[Callable[[], Batches]], schema: pa.Schema | None = None) -> Frame:
        return Frame(self._session, parts, schema or self._schema, self._observed)

    def _each_row(self, make: Callable[[Row], list[Row]], schema: pa.Schema | None = None) -> Frame:
        made = schema or self._schema

        def run(part: Part) -> Batches:
            for batch in part():
                yield pa.RecordBatch.from_pylist([new for row in batch.to_pylist() for new in make(row)], schema=made)

        return self._with([lambda part=part: run(part) for part in self._parts], made)


class Observed:
    """Spark's Observation: what was counted at a place of a plan the first time it was run."""

    def __init__(self) -> None:
        #: By the places of their parts.
        self.rows: dict[int, list[Row]] = {}
        self.aggregates: tuple[Column, ...] = ()
        self.counted: dict[str, Any] | None = None

    def count(self) -> None:
        if self.counted is None:
            rows = [row for part in self.rows.values() for row in part]
            self.counted = {column.name: column(rows) for column in self.aggregates}

    @property
    def get(self) -> dict[str, Any]:
        assert self.counted is not None
        return self.counted


@dataclass(eq=False)
class Column:
    """A value of a row; as an aggregate, of all rows."""

    of: Callable[[Any], Any]
    name: str = ""

    def __call__(self, rows: Any) -> Any:
        return self.of(rows)

    def __eq__(self, other: object) -> Column:  # type: ignore[override]
        return Column(lambda row: self(row) == (other(row) if isinstance(other, Column) else other))

    __hash__ = None  # type: ignore[assignment]

    def alias(self, name: str) -> Column:
        return Column(self.of, name)

    def between(self, low: Any, high: Any) -> Column:
        return Column(lambda row: low <= self(row) <= high)

    def isNull(self) -> Column:  # noqa: N802
        return Column(lambda row: self(row) is None)


def _column(given: str | Column) -> Column:
    return given if isinstance(given, Column) else Column(lambda row: row[given])


class Functions:
    """The module `pyspark.sql.functions`."""

    def col(self, name: str) -> Column:
        return Column(lambda row: row[name])

    def lit(self, value: Any) -> Column:
        return Column(lambda _: value)

    def raise_error(self, said: str | Column) -> Column:
        def fail(row: Row) -> Any:
            raise SparkError(_column(said)(row))

        return Column(fail)

    def expr(self, text: str) -> Column:
        """A text from a place to its end, as in `substring(lock_token, 17)`: no other expression is asked for."""
        found = re.fullmatch(r"substring\((\w+), (\d+)\)", text)
        assert found is not None, text
        name, first = found[1], int(found[2])
        return Column(lambda row: None if row[name] is None else row[name][first - 1 :])

    def substring(self, name: str, first: int, length: int) -> Column:
        return Column(lambda row: None if row[name] is None else row[name][first - 1 : first - 1 + length])

    def nullif(self, column: Column, other: Column) -> Column:
        return Column(lambda row: None if column(row) == other(row) else column(row))

    def concat_ws(self, between: str, *columns: str | Column) -> Column:
        return Column(lambda row: between.join(said for each in columns if (said := _column(each)(row)) is not None))

    def hex(self, column: Column) -> Column:
        return Column(lambda row: f"{column(row):X}")

    def lpad(self, column: Column, length: int, with_: str) -> Column:
        return Column(lambda row: column(row).rjust(length, with_)[:length])

    def when(self, condition: Column, value: Column) -> Any:
        return SimpleNamespace(otherwise=lambda other: Column(lambda row: value(row) if condition(row) else other(row)))

    def broadcast(self, frame: Frame) -> Frame:
        return frame

    def count(self, _: Column) -> Column:
        return Column(len)

    def count_if(self, condition: Column) -> Column:
        return Column(lambda rows: sum(bool(condition(row)) for row in rows))

    def max(self, column: Column) -> Column:
        return Column(lambda rows: max((value for row in rows if (value := column(row)) is not None), default=None))

    def octet_length(self, name: str) -> Column:
        return Column(lambda row: None if row[name] is None else len(row[name].encode()))

    def xxhash64(self, *names: str) -> Column:
        return Column(lambda row: zlib.crc32("\0".join(str(row[name]) for name in names).encode()))

    def bit_xor(self, column: Column) -> Column:
        return Column(lambda rows: reduce(xor, map(column, rows)) if rows else None)


def install(patch: pytest.MonkeyPatch, here: Here) -> None:
    @contextmanager
    def open_session(_name: str) -> Iterator[Session]:
        yield Session(here, here.rng.choice(_ATTEMPTS))

    def context() -> Executor | None:
        strand = here.strand()
        about = strand.process.about if strand else None
        return about if isinstance(about, Executor) else None

    instead: list[tuple[Any, Any]] = [
        (TaskContext, SimpleNamespace(get=context)),
        (DataFrame, Frame),
        (Observation, Observed),
        (spark_functions, Functions()),
        (sessions.open_session, open_session),
        (sessions.cancel_jobs, Session.cancel),
        (sessions.parallelism, lambda _: _PARTS),
        (sessions.master_of, lambda _: "local"),
        (master.refuse_unreachable, lambda *_: None),
    ]
    replace(patch, instead)
