"""The session of a Spark job: with a driver of its own, or as a client of a Spark Connect server (SPARK_REMOTE).

A client has no SparkContext, so everything that differs is here.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from homing import portions
from homing.spark.submit.java import require_java
from homing.spark.submit.job import UI_SENTENCE
from homing.spark.submit.py_files import PY_FILES

log = logging.getLogger(__name__)


def is_client() -> bool:
    return "SPARK_REMOTE" in os.environ


@contextmanager
def open_session(name: str) -> Iterator[SparkSession]:
    """The session, which ends with the block."""
    if is_client():
        spark = SparkSession.builder.getOrCreate()
        try:
            if PY_FILES in os.environ:
                spark.addArtifacts(*os.environ[PY_FILES].split(","), pyfile=True)
            log.info("Spark Connect session %s", spark.session_id)  # type: ignore[attr-defined]
            yield spark
        finally:
            spark.stop()
        return
    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # where spark-submit started this, Java runs already
        require_java()
    # A second copy of a task that delivers would deliver a second time.
    spark = SparkSession.builder.appName(name).config("spark.speculation", "false").getOrCreate()
    try:
        # The task that submitted this looks for the sentence, and links to the address.
        log.info(UI_SENTENCE, spark.sparkContext.applicationId, spark.sparkContext.uiWebUrl)
        yield spark
    finally:
        spark.stop()


def in_portions(spark: SparkSession) -> None:
    """Has Spark hand rows to Python a portion at a time; by itself it counts ten thousand rows, whatever they hold."""
    spark.conf.set("spark.sql.execution.arrow.maxBytesPerBatch", str(portions.MOST_BYTES))


def file_options() -> dict[str, str]:
    """Has Spark write files in groups of rows of a portion each, which is what it reads at once. By itself it looks at
    their size after a hundred rows."""
    return {"parquet.block.size": str(portions.MOST_BYTES), "parquet.page.size.row.check.min": "1"}


def reading_options() -> dict[str, str]:
    """Has Spark fail when a file is gone or damaged, whatever its own settings say: a message that was not read would
    look like one that a rule left out."""
    return {"ignoreMissingFiles": "false", "ignoreCorruptFiles": "false"}


def master_of(spark: SparkSession) -> str:
    """Where the executors are. A Spark Connect server does not say, so they may be anywhere."""
    return "sc://" if is_client() else str(spark.sparkContext.master)


def cancel_jobs(spark: SparkSession) -> None:
    """Stops what this session has Spark do."""
    if is_client():
        spark.interruptAll()
    else:
        spark.sparkContext.cancelAllJobs()


@lru_cache(maxsize=4)
def parallelism(spark: SparkSession) -> int:
    """How many tasks Spark cuts work into that says nothing about it."""
    if is_client():
        return spark.range(10_000).select(F.spark_partition_id()).distinct().count()
    return spark.sparkContext.defaultParallelism
