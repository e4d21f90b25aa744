"""Handlers that take a whole DataFrame: called to make a plan, and checked to have lost or invented no message."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, MapType, StringType, StructType, VariantType

from homing.errors import HandlerError
from homing.message import JSON
from homing.pipeline.handlers import TRANSFORMER, Handler
from homing.spark.bisection import FailedForAllError
from homing.spark.columns import PROCESSED

_WRITTEN_AS_JSON = (StructType, ArrayType, MapType, VariantType)


@dataclass(frozen=True)
class Segment:
    """Processors that stand in a row and run in one way: each on a whole DataFrame, or all on one message."""

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


@dataclass(frozen=True)
class Check:
    """Counts what goes into a transformer and what comes out, as a by-product of the job that runs it."""

    handler: Handler
    before: Observation
    after: Observation

    def verify(self) -> None:
        """Raises HandlerError unless every message came out once, with a content. Only after the job."""
        before, after = self.before.get, self.after.get
        name = self.handler.name
        if (before.get("rows"), before.get("ids")) != (after.get("rows"), after.get("ids")):
            raise HandlerError(
                f"transformer {name!r} was given {before.get('rows')} messages and returned {after.get('rows')} rows, "
                "or rows of other ids: it returns one row for each",
                name,
            )
        if after.get("empty"):
            raise HandlerError(f"transformer {name!r} returned a null `message`: a content has a value", name)


@dataclass(frozen=True)
class Passage:
    """Counts what goes into a flow and what comes out of it, likewise."""

    before: Observation = field(default_factory=Observation)
    after: Observation = field(default_factory=Observation)

    def into(self, frame: DataFrame) -> DataFrame:
        return frame.observe(self.before, *_counted())

    def out_of(self, frame: DataFrame) -> DataFrame:
        return frame.observe(self.after, *_counted())

    @property
    def entered(self) -> int:
        """How many messages went in. Only after the job, as what comes next."""
        return int(self.before.get["rows"])

    def let_pass(self, number: int) -> bool:
        """Whether so many messages went in, and the same came out."""
        return self.entered == number and self.before.get == self.after.get


def apply(handler: Handler, frame: DataFrame, checks: list[Check]) -> DataFrame:
    """The frame after this filter or transformer; what is to be verified after the job is added to `checks`."""
    if handler.kind != TRANSFORMER:
        return _returned(handler, _call(handler, frame))
    check = Check(handler, Observation(), Observation())
    checks.append(check)
    made = _returned(handler, _call(handler, frame.observe(check.before, *_counted())))
    empty = F.count_if(F.col("message").isNull()).alias("empty")
    return made.observe(check.after, *_counted(), empty)


def _counted() -> tuple[Column, Column]:
    return F.count(F.lit(1)).alias("rows"), F.bit_xor(F.xxhash64("id")).alias("ids")


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
    except Exception as error:  # noqa: BLE001 - an author's function may raise anything
        # Making the plan touches no message, so it is no message's fault.
        failed = HandlerError(f"{handler.kind} {handler.name!r} failed: {type(error).__qualname__}", handler.name)
        failed.__cause__ = error
        raise FailedForAllError from failed
    return returned


def _returned(handler: Handler, made: DataFrame) -> DataFrame:
    kind = made.schema["message"].dataType
    if isinstance(kind, _WRITTEN_AS_JSON):
        made = made.withColumns({"message": F.to_json("message"), "encoding": F.lit(JSON)})
    elif not isinstance(kind, StringType):
        error = TypeError(f"it returned a `message` of type {kind.simpleString()}; it is a struct, map, array or text")
        failed = HandlerError(f"{handler.kind} {handler.name!r} failed: {error}", handler.name)
        failed.__cause__ = error
        raise FailedForAllError from failed
    return made.select(*PROCESSED.names)
