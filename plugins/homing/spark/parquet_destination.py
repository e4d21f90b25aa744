"""parquet_lake: a destination that adds messages to a folder of Parquet files, each once."""

from __future__ import annotations

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from homing.delivery.work_files import Files, LocalFiles, local_path
from homing.errors import ConfigurationError, LakeError
from homing.pipeline import destination
from homing.pipeline.handlers import Handler
from homing.spark.hadoop import HadoopFiles
from homing.spark.sessions import is_client
from homing.spark.staged_files import Staging

_COLUMNS = (
    "id", "sequence", "table_id", "message", "encoding", "content_type", "headers", "correlation_id", "session_id",
    "partition_key", "subject", "time_created", "properties",
)  # fmt: skip
# Which message it is. Two pipelines may share a lake, the names of their runs, and the ids and numbers of messages.
_IDENTITY = ("id", "sequence", "table_id")
# An empty value could not be told from none in the name of a folder.
_NO_BATCH = "none"


def parquet_lake(path: str, *, name: str = "lake") -> Handler:
    """A DataFrame destination that appends to Parquet files below `path`, one folder `batch_id=...` per batch.

    Idempotent per batch: what is there of a message's batch is not added again, so that a replay, or a job that died
    after writing, adds nothing twice. Any number of jobs may add at the same time. It returns when what it added can be
    read, and raises LakeError, which no message is to blame for, when it cannot. Written without Python per row;
    `message` holds the content as text.
    """
    folder = path.rstrip("/") or path

    def lake(messages: DataFrame) -> None:
        batch = F.when(F.col("batch_id") == "", F.lit(_NO_BATCH)).otherwise(F.col("batch_id"))
        new = messages.select(*_COLUMNS, batch.alias("batch_id"))
        there = _there(new, folder)
        if there is not None:
            same = [new[name].eqNullSafe(there[name]) for name in ("batch_id", *_IDENTITY)]
            new = new.join(there, same, "left_anti")
        _append(new, folder)

    return destination(name=name, dataframe=True)(lake)


def _append(new: DataFrame, path: str) -> None:
    """Adds these rows, and returns when they can be read."""
    staging, written = Staging(path, _files(path)), Observation()
    try:
        observed = new.observe(written, F.count(F.lit(1)).alias("rows"))
        observed.write.partitionBy("batch_id").parquet(staging.place)
        rows, readable = written.get.get("rows", 0), _rows_in(new.sparkSession, staging.put_in_place())
    except OSError as error:
        raise LakeError(f"the lake {path} cannot be used: {error}") from error
    finally:
        staging.remove()
    if rows != readable:
        raise LakeError(
            f"the lake {path} has lost rows: {rows} rows were written and {readable} of them can be read. Nothing was "
            "recorded as delivered; look for what else removes files there"
        )


def _rows_in(spark: SparkSession, files: list[str]) -> int:
    """How many rows these very files have, by what is written at the end of each."""
    return spark.read.schema("id string").parquet(*files).count() if files else 0


def _files(path: str) -> Files:
    if not is_client():
        return HadoopFiles("lake", LakeError)
    if local_path(path) is None:
        raise ConfigurationError(
            f"a client of Spark Connect has no Hadoop to reach {path} with: give parquet_lake a path that it shares "
            "with the server"
        )
    return LocalFiles()


def _there(new: DataFrame, path: str) -> DataFrame | None:
    """The messages that lie below `path` of the batches of these messages; None when nothing does."""
    batches = [row["batch_id"] for row in new.select("batch_id").distinct().collect()]
    # Told, not guessed: a batch called 001 is a text.
    schema = "id string, sequence bigint, table_id string, batch_id string"
    try:
        lying = new.sparkSession.read.schema(schema).parquet(path)
    except AnalysisException as error:
        if error.getCondition() == "PATH_NOT_FOUND":
            return None
        raise
    return lying.where(F.col("batch_id").isin(batches))
