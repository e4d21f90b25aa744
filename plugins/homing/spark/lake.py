"""parquet_lake: a destination that adds messages to a folder of Parquet files, each once."""

from __future__ import annotations

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from homing.pipeline import destination
from homing.pipeline.handlers import Handler

_COLUMNS = (
    "id", "sequence", "message", "encoding", "content_type", "headers", "correlation_id", "session_id", "partition_key",
    "subject", "time_created", "properties",
)  # fmt: skip
# An empty value could not be told from none in the name of a folder.
_NO_BATCH = "none"


def parquet_lake(path: str, *, name: str = "lake") -> Handler:
    """A DataFrame destination that appends to Parquet files below `path`, one folder `batch_id=...` per batch.

    Idempotent per batch: what is there of a message's batch is not added again, so that a replay, or a job that died
    after writing, adds nothing twice. Written without Python per row; `message` holds the content as text.
    """

    def lake(messages: DataFrame) -> None:
        batch = F.when(F.col("batch_id") == "", F.lit(_NO_BATCH)).otherwise(F.col("batch_id"))
        new = messages.select(*_COLUMNS, batch.alias("batch_id"))
        there = _there(new, path)
        if there is not None:
            new = new.join(there, ["batch_id", "id", "sequence"], "left_anti").select(*new.columns)
        new.write.mode("append").partitionBy("batch_id").parquet(path)

    return destination(name=name, dataframe=True)(lake)


def _there(new: DataFrame, path: str) -> DataFrame | None:
    """The ids that lie below `path` for the batches of these messages; None when nothing does."""
    batches = [row["batch_id"] for row in new.select("batch_id").distinct().collect()]
    # Told, not guessed: a batch called 001 is a text.
    schema = "id string, sequence bigint, batch_id string"
    try:
        lying = new.sparkSession.read.schema(schema).parquet(path)
    except AnalysisException as error:
        if error.getCondition() == "PATH_NOT_FOUND":
            return None
        raise
    return lying.where(F.col("batch_id").isin(batches))
