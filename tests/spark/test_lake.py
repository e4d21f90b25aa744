"""parquet_lake: several jobs add to one lake at the same time, die in between, and no row is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from homing.errors import ConfigurationError, LakeError
from homing.pipeline.handlers import Handler
from homing.spark import parquet_lake
from homing.spark.columns import PROCESSED_DDL
from homing.spark.hadoop import HadoopFiles
from homing.spark.parquet_destination import _files

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lake"


@pytest.fixture
def lake(path: Path) -> Handler:
    return parquet_lake(str(path))


def messages(spark: SparkSession, batch: str, first: int, last: int, parts: int = 2) -> DataFrame:
    """Processed messages of these numbers."""
    number = F.col("number")
    columns = {
        "sequence": number,
        "id": F.concat(F.lit(f"{batch}-"), number),
        "message": number.cast("string"),
        "batch_id": F.lit(batch),
        "properties": F.lit("{}"),
    }
    frame = spark.range(first, last, 1, parts).withColumnRenamed("id", "number")
    schema = [pair.split() for pair in PROCESSED_DDL.split(", ")]
    return frame.select(*(columns.get(name, F.lit(None)).cast(kind).alias(name) for name, kind in schema))


def readable(spark: SparkSession, path: Path) -> list[str]:
    return sorted(row["id"] for row in spark.read.parquet(str(path)).select("id").collect())


def ids(batch: str, number: int) -> list[str]:
    return sorted(f"{batch}-{n}" for n in range(number))


def wait_until(done: Callable[[], object], job: Future[object] | None = None) -> None:
    limit = time.monotonic() + 60
    while not done():
        assert time.monotonic() < limit
        if job is not None and job.done():
            job.result()
        time.sleep(0.05)


def test_a_job_paused_while_another_commits_loses_no_row(
    spark: SparkSession, lake: Handler, path: Path, tmp_path: Path
) -> None:
    asked, gate = tmp_path / "asked", tmp_path / "gate"

    def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch.slice(0, 10)
            yield batch.slice(10, 10)  # what is yielded is on its way when the next is
            if "run-0" in batch.column("id").to_pylist():
                while asked.exists() and not gate.exists():
                    time.sleep(0.05)
                asked.touch()  # which batches these are; the next time they are written
            yield batch.slice(20)

    long = messages(spark, "run", 0, 210).withColumn("message", F.rpad("message", 100_000, "x"))
    with as_they_come(spark), ThreadPoolExecutor(1) as pool:
        job = pool.submit(lake, long.mapInArrow(wait, PROCESSED_DDL))
        try:
            wait_until(
                lambda: list(path.rglob("attempt_*/*/part-00000*.parquet")), job
            )  # its file is open, and the rest of its rows to come
            lake(messages(spark, "replay", 0, 30))
        finally:
            gate.touch()
        job.result(120)

    assert readable(spark, path) == sorted(ids("run", 210) + ids("replay", 30))


@contextmanager
def as_they_come(spark: SparkSession) -> Iterator[None]:
    """Has Spark write rows as they come, instead of after all of them are there and sorted."""
    settings = {"spark.sql.optimizer.plannedWrite.enabled": "false", "spark.sql.maxConcurrentOutputFileWriters": "5"}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name in settings:
            spark.conf.unset(name)


def test_jobs_that_add_to_one_batch_at_once_lose_no_row_and_leave_nothing_behind(
    spark: SparkSession, lake: Handler, path: Path
) -> None:
    frames = [messages(spark, "run", 50 * n, 50 * n + 50) for n in range(8)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lake, frames))

    assert readable(spark, path) == ids("run", 400)
    assert not list((path / "_staging").iterdir())


DIES = """
import os, signal, sys
from pyspark.sql import SparkSession
from homing.spark import parquet_lake
from homing.spark.hadoop import HadoopFiles
from tests.spark.test_lake import messages

move, moved = HadoopFiles.move, []

def move_one_and_die(*args):
    if moved:
        os.kill(os.getpid(), signal.SIGKILL)
    moved.append(move(*args))

HadoopFiles.move = move_one_and_die
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
parquet_lake(sys.argv[1])(messages(spark, "run", 0, 100, 4))
"""


def test_a_job_killed_between_two_files_is_done_again_without_a_row_lost_or_doubled(
    spark: SparkSession, lake: Handler, path: Path
) -> None:
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": f"{root}:{os.environ.get('PYTHONPATH', '')}"}
    died = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(DIES), str(path)], env=environment, timeout=200, check=False
    )
    assert died.returncode == -signal.SIGKILL
    assert 0 < len(readable(spark, path)) < 100
    (left,) = (path / "_staging").iterdir()

    lake(messages(spark, "run", 0, 100, 4))

    assert readable(spark, path) == ids("run", 100)
    assert list((path / "_staging").iterdir()) == [left]  # whose job may live, for all that is known


def test_what_a_job_left_long_ago_is_removed_and_what_others_have_in_hand_is_not(
    spark: SparkSession, lake: Handler, path: Path
) -> None:
    lake(messages(spark, "run", 0, 10))
    old, young, strange = (path / "_staging" / name for name in ("1000000000-a", f"{int(time.time())}-b", "mine"))
    for folder in (old, young, strange):
        (folder / "batch_id=x").mkdir(parents=True)

    lake(messages(spark, "run", 0, 20))

    assert sorted((path / "_staging").iterdir()) == sorted([young, strange])
    assert readable(spark, path) == ids("run", 20)


def test_rows_that_cannot_be_read_back_are_not_delivered(
    spark: SparkSession, lake: Handler, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    below = HadoopFiles.below
    monkeypatch.setattr(HadoopFiles, "below", lambda self, name: below(self, name)[1:])  # one file is not seen

    with pytest.raises(LakeError, match="100 rows were written and 50 of them can be read"):
        lake(messages(spark, "run", 0, 100, 2))


def test_nothing_to_add_is_nothing_to_read_back(spark: SparkSession, lake: Handler, path: Path) -> None:
    lake(messages(spark, "run", 0, 10))
    lake(messages(spark, "run", 0, 10))
    lake(messages(spark, "run", 0, 10).limit(0))

    assert readable(spark, path) == ids("run", 10)


def test_a_batch_whose_name_a_folder_cannot_have_is_put_in_its_place(
    spark: SparkSession, lake: Handler, path: Path
) -> None:
    batch = "scheduled__2026-11-18T00:00:00+00:00/% ä"
    lake(messages(spark, batch, 0, 4))
    lake(messages(spark, batch, 0, 6))

    rows = spark.read.schema(f"{PROCESSED_DDL}").parquet(str(path)).select("id", "batch_id").collect()
    assert sorted(row["id"] for row in rows) == ids(batch, 6)
    assert {row["batch_id"] for row in rows} == {batch}


def test_messages_of_two_tables_are_two_though_batch_id_and_number_are_the_same(
    spark: SparkSession, lake: Handler, path: Path
) -> None:
    """Two databases, each with a store of its own, may write to one lake; and a table may be made anew."""
    for table in ("first", "second", "first"):
        lake(messages(spark, "run", 0, 5).withColumn("table_id", F.lit(table)))

    assert readable(spark, path) == sorted(2 * ids("run", 5))


def test_a_client_of_spark_connect_puts_files_in_place_in_a_folder_it_shares_with_the_server(
    spark: SparkSession, lake: Handler, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("homing.spark.parquet_destination.is_client", lambda: True)
    lake(messages(spark, "run:1", 0, 10))
    lake(messages(spark, "run:1", 0, 20))

    assert readable(spark, path) == ids("run:1", 20)
    assert not list((path / "_staging").iterdir())
    with pytest.raises(ConfigurationError, match="no Hadoop to reach s3a://bucket/lake"):
        _files("s3a://bucket/lake")
