"""Handlers that take a whole DataFrame. Calling one makes a plan for Spark; a check finds lost or invented messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, MapType, StringType, StructType, VariantType

from homing.delivery.arrow.columns import PROCESSED
from homing.errors import HandlerError
from homing.message import JSON
from homing.pipeline.handlers import TRANSFORMER, Handler

_WRITTEN_AS_JSON = (StructType, ArrayType, MapType, VariantType)

# What a message is known by in the ledger and the stores. A handler that changed it would say of one message what
# became of another, or of none.
_IDENTITY = ("id", "table_id", "sequence", "batch_id")
_SEAL = 16  # hexadecimal digits

# When Spark finds out, before or in the middle of a job, that nothing will come out of a plan, it leaves out what comes
# before, and with it the counts. Then a transformer that loses messages looks like a filter. These are the rules by
# which Spark does so.
_LEAVING_OUT = {
    "spark.sql.optimizer.excludedRules": (
        "org.apache.spark.sql.catalyst.optimizer.PropagateEmptyRelation",
        "org.apache.spark.sql.catalyst.optimizer.PruneFilters",
    ),
    "spark.sql.adaptive.optimizer.excludedRules": (
        "org.apache.spark.sql.execution.adaptive.AQEPropagateEmptyRelation",
    ),
}


@dataclass(frozen=True)
class Segment:
    """Processors in a row that run in the same way: each on a whole DataFrame (`native`), or all on one message."""

    start: int
    stop: int
    native: bool


def segments(processors: Sequence[Handler]) -> Iterator[Segment]:
    """The processors of a flow, cut where the way they run changes."""
    start = 0
    for native, group in groupby(processors, key=lambda handler: handler.dataframe):
        stop = start + len(list(group))
        yield Segment(start, stop, native)
        start = stop


def is_native(processors: Sequence[Handler]) -> bool:
    """Whether one of these takes DataFrames."""
    return any(handler.dataframe for handler in processors)


def run_everything(spark: SparkSession) -> None:
    """Has Spark run all of a plan, so that what a RowCounter counts is counted."""
    for name, rules in _LEAVING_OUT.items():
        before = [rule for rule in (spark.conf.get(name, "") or "").split(",") if rule]
        spark.conf.set(name, ",".join(dict.fromkeys([*before, *rules])))


class RowCounter:
    """Counts the messages that go into and come out of a flow, and each of its transformers.

    The job that runs the flow counts them on the way, so the counts are known after the job. Each count costs time: if
    one handler's output goes straight into the next, it is counted once.
    """

    def __init__(self) -> None:
        self._place: DataFrame | None = None
        self._count: Observation | None = None
        self._before: Observation | None = None
        self._after: Observation | None = None
        self._checks: list[Check] = []

    def begin(self, frame: DataFrame) -> DataFrame:
        """The frame, counted as what goes into the flow."""
        frame, self._before = self._at(frame)
        return frame

    def end(self, frame: DataFrame) -> DataFrame:
        """The frame, counted as what comes out of it."""
        frame, self._after = self._at(frame)
        return frame

    def around(self, handler: Handler, transform: Callable[[DataFrame], DataFrame], frame: DataFrame) -> DataFrame:
        """What the transformer makes of the frame, counted before and after."""
        frame, before = self._at(frame)
        empty = F.count_if(F.col("message").isNull()).alias("empty")
        frame, after = self._at(transform(frame), empty)
        self._checks.append(Check(handler, before, after))
        return frame

    def verify(self) -> None:
        """Raises HandlerError unless every message came out of each transformer once, with a content."""
        for check in self._checks:
            check.verify()

    @property
    def entered(self) -> int | None:
        """How many messages went into the flow; None when that was not counted."""
        counted = _counts(self._before)
        return None if counted is None else counted["rows"]

    @property
    def left(self) -> int:
        """How many messages came out of it."""
        return (_counts(self._after) or _NOTHING)["rows"]

    def let_pass(self, number: int) -> bool:
        """Whether so many messages went in, and the same came out."""
        return self.entered == number and _same(_counts(self._before), _counts(self._after))

    def _at(self, frame: DataFrame, *more: Column) -> tuple[DataFrame, Observation]:
        if self._place is None or self._count is None or frame is not self._place:
            rows, ids = F.count(F.lit(1)).alias("rows"), F.bit_xor(F.xxhash64("id")).alias("ids")
            self._count = Observation()
            self._place = frame.observe(self._count, rows, ids, *more)
        return self._place, self._count


@dataclass(frozen=True)
class Check:
    """What went into a transformer and what came out."""

    handler: Handler
    before: Observation
    after: Observation

    def verify(self) -> None:
        name = self.handler.name
        before, after = _counts(self.before), _counts(self.after) or _NOTHING
        if before is None:
            raise HandlerError(
                f"it is not known whether transformer {name!r} lost a message: Spark did not run it, because it found "
                "out that nothing can come out of the chain",
                name,
            )
        if not _same(before, after):
            raise HandlerError(
                f"transformer {name!r} was given {before['rows']} messages and returned {after['rows']} rows, "
                "or rows of other ids: it returns one row for each",
                name,
            )
        if after["empty"]:
            raise HandlerError(f"transformer {name!r} returned a null `message`: every message needs a content", name)


_NOTHING: Mapping[str, Any] = {"rows": 0, "ids": None, "empty": 0}


def _same(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> bool:
    return before is not None and after is not None and all(before[what] == after[what] for what in ("rows", "ids"))


def _counts(place: Observation | None) -> Mapping[str, Any] | None:
    """What was counted at a place. None where Spark left the count out: it does so when it finds out that no message
    comes there, or that nothing comes of those that do."""
    try:
        return None if place is None else place.get
    except Exception:  # noqa: BLE001 - of many kinds, as with all that fails within Spark
        return None


def apply(handler: Handler, frame: DataFrame, counter: RowCounter) -> DataFrame:
    """The frame after this filter or transformer."""

    def transform(given: DataFrame) -> DataFrame:
        return _unsealed(handler, _returned(handler, _call(handler, _sealed(given))))

    return counter.around(handler, transform, frame) if handler.kind == TRANSFORMER else transform(frame)


def _call(handler: Handler, frame: DataFrame) -> DataFrame:
    try:
        returned = handler.function(frame)
        if not isinstance(returned, DataFrame):
            raise TypeError(f"it returned a {type(returned).__qualname__}, not a DataFrame")  # noqa: TRY301
        missing = [name for name in PROCESSED.names if name not in returned.columns]
        if missing:
            raise TypeError(  # noqa: TRY301
                f"it returned a DataFrame without {', '.join(missing)}: change `message` with withColumn, keep the rest"
            )
    except Exception as error:
        raise HandlerError(
            f"{handler.kind} {handler.name!r} failed: {type(error).__qualname__}", handler.name
        ) from error
    return returned


def _returned(handler: Handler, made: DataFrame) -> DataFrame:
    kind = made.schema["message"].dataType
    if isinstance(kind, _WRITTEN_AS_JSON):
        made = made.withColumns({"message": F.to_json("message"), "encoding": F.lit(JSON)})
    elif not isinstance(kind, StringType):
        error = TypeError(f"it returned a `message` of type {kind.simpleString()}; it is a struct, map, array or text")
        raise HandlerError(f"{handler.kind} {handler.name!r} failed: {error}", handler.name) from error
    return made.select(*PROCESSED.names)


def _seal() -> Column:
    return F.lpad(F.hex(F.xxhash64(*_IDENTITY)), _SEAL, "0")


def _sealed(frame: DataFrame) -> DataFrame:
    """The frame, in which the lock token of each row begins with a seal on the row's identity.

    It stands in a column that handlers hand on as it is: one of its own would be missing wherever a handler names the
    columns that it returns.
    """
    return frame.withColumn("lock_token", F.concat_ws("", _seal(), "lock_token"))


def _unsealed(handler: Handler, returned: DataFrame) -> DataFrame:
    """The frame without seals. It raises an error once the content of a row is read whose seal is not its own."""
    refusal = F.raise_error(
        F.lit(
            f"{handler.kind} {handler.name!r} returned a row that is none of the messages it was given: "
            f"{', '.join(_IDENTITY)} or lock_token is another. Change `message`, and keep the rest"
        )
    )
    content = F.when(F.substring("lock_token", 1, _SEAL) == _seal(), F.col("message")).otherwise(refusal)
    token = F.nullif(F.expr(f"substring(lock_token, {_SEAL + 1})"), F.lit(""))
    return returned.withColumns({"message": content, "lock_token": token})
