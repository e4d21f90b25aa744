"""Handlers that take a whole DataFrame, in a trial: on a Spark session of this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from homing.errors import HandlerError
from homing.extras import needs
from homing.invocation.invalid_return import find_return_fault
from homing.ledger import DELIVERED, DROPPED
from homing.message import Message
from homing.pipeline import Drop, MessageContext
from homing.pipeline.handlers import Handler
from homing.pipeline.outcome import DeliveryOutcome, failed
from homing.row import READ, envelope

with needs("a trial of a handler that takes DataFrames", "spark", "pyspark", "pyarrow"):
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from homing.delivery.arrow.columns import PROCESSED, to_batch
    from homing.delivery.arrow.steps import begin
    from homing.spark import dataframe_handlers
    from homing.spark.submit.java import require_java

#: The identity of the store that the messages of a trial seem to come from.
_TABLE = "trial"
#: How a message came out of a handler: changed, left out (None), or with the error it failed with.
Passed = MessageContext | HandlerError | None


def process_frame(handler: Handler, ctxs: Sequence[MessageContext]) -> list[tuple[MessageContext, Passed]]:
    """Calls a filter or a transformer with all of these messages; where that fails, with each of them alone."""
    if not ctxs:
        return []
    try:
        passed = _passed(handler, ctxs)
    except Exception as error:  # noqa: BLE001 - whatever it is, it may be the fault of a single message
        if len(ctxs) > 1:
            return [pair for ctx in ctxs for pair in process_frame(handler, [ctx])]
        return [(ctxs[0], _as_handler_error(handler, error))]
    return [(ctx, passed.get(place)) for place, ctx in enumerate(ctxs)]


def deliver_frame(destination: Handler, ctxs: Sequence[MessageContext]) -> list[tuple[int, DeliveryOutcome]]:
    """Calls a destination with all of these messages; where that fails, with each of them alone."""
    try:
        outcome = _delivered(destination, _frame(ctxs)) if ctxs else None
    except Exception as error:  # noqa: BLE001 - as above
        if len(ctxs) > 1:
            return [(place, deliver_frame(destination, [ctx])[0][1]) for place, ctx in enumerate(ctxs)]
        outcome = failed(destination.name, _as_handler_error(destination, error))
    return [(place, outcome) for place in range(len(ctxs))] if outcome else []


def _passed(handler: Handler, ctxs: Sequence[MessageContext]) -> dict[int, MessageContext]:
    """The messages that came out, by their positions."""
    counter = dataframe_handlers.RowCounter()
    rows = dataframe_handlers.apply(handler, _frame(ctxs), counter).toArrow().to_pylist()
    counter.verify()
    if len({row["sequence"] for row in rows}) != len(rows):
        raise HandlerError(f"{handler.kind} {handler.name!r} returned a message twice", handler.name)
    return {row["sequence"]: begin(row) for row in rows}


def _delivered(destination: Handler, frame: DataFrame) -> DeliveryOutcome:
    try:
        result = destination.function(frame)
    except Drop:
        return DeliveryOutcome(destination.name, DROPPED, None, 1)
    if (fault := find_return_fault(result)) is not None:
        raise fault
    return DeliveryOutcome(destination.name, DELIVERED, None, 1)


def _frame(ctxs: Sequence[MessageContext]) -> DataFrame:
    """The messages as the data source `homing` shows them; their positions are their sequence numbers."""
    batch = to_batch([_row(place, ctx) for place, ctx in enumerate(ctxs)], PROCESSED)
    return _session().createDataFrame(pa.Table.from_batches([batch]))


def _row(place: int, ctx: MessageContext) -> dict[str, Any]:
    message: Message = ctx.processed_message()
    encoded, properties = ctx.write_down()
    empty = dict.fromkeys((*READ, *PROCESSED.names))
    times = {"time_created": 0, "time_scheduled": 0, "time_next": 0}
    written = {"id": message.id, "message": encoded.body, "encoding": encoded.encoding, "properties": properties}
    counted = {"sequence": place, "epoch": 1, "crashes": 0, "table_id": _TABLE, "batch_id": _TABLE}
    return {**empty, **envelope(message), **times, **written, **counted}


def _session() -> SparkSession:
    """The active session, or a small one on this machine, which stays for the trials that follow."""
    spark = SparkSession.getActiveSession()
    if spark is None:
        require_java()
        builder = SparkSession.builder.master("local[1]").appName("homing.testing")
        builder = builder.config("spark.ui.enabled", "false").config("spark.sql.shuffle.partitions", "1")
        spark = builder.config("spark.log.level", "ERROR").getOrCreate()
    # Or what the handlers leave out could not be counted.
    dataframe_handlers.run_everything(spark)
    return spark


def _as_handler_error(handler: Handler, error: Exception) -> HandlerError:
    if isinstance(error, HandlerError):
        return error
    wrapped = HandlerError(f"{handler.kind} {handler.name!r} failed: {type(error).__qualname__}", handler.name)
    wrapped.__cause__ = error
    return wrapped
