"""The data source `homing`: a claimed batch as a DataFrame, and no side effect."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException

from homing import open_store
from homing.spark import register
from tests.spark.conftest import Numbers


def test_a_claimed_batch_is_read_whole_and_reading_changes_nothing(numbers: Numbers) -> None:
    numbers.claim("run", *[{"n": n} for n in range(2_500)])
    numbers.stores.store.store({"n": 9_999})  # not part of the batch
    before = numbers.stores.store.count()
    register(numbers.spark)

    frame = (
        numbers.spark.read.format("homing")
        .option("url", numbers.pipeline.store)
        .option("batch", "run")
        .option("partitions", "3")
        .load()
    )

    assert frame.rdd.getNumPartitions() == 3
    assert sorted(row["message"] for row in frame.select("message").collect()) == sorted(
        f'{{"n":{n}}}' for n in range(2_500)
    )
    assert frame.count() == 2_500
    assert numbers.stores.store.count() == before


def test_a_batch_nobody_claimed_is_empty(numbers: Numbers) -> None:
    register(numbers.spark)

    frame = numbers.spark.read.format("homing").option("url", numbers.pipeline.store).option("batch", "x").load()

    assert frame.count() == 0


def test_a_missing_option_is_named(numbers: Numbers) -> None:
    register(numbers.spark)

    with pytest.raises(AnalysisException, match='needs the option "url"'):
        numbers.spark.read.format("homing").load().count()


def test_messages_are_read_filtered_and_written_by_spark_itself(numbers: Numbers) -> None:
    ids = numbers.stores.store.store_many([{"n": n} for n in range(50)])
    register(numbers.spark)
    waiting = numbers.spark.read.format("homing").option("url", numbers.pipeline.store).load()

    some = waiting.where((waiting.id > ids[9]) & (waiting.encoding == "json"))
    write = some.write.format("homing").option("url", numbers.pipeline.store).option("store", "copy").mode("append")
    write.save()
    write.save()

    with numbers.stores.store.sibling("copy") as copy:
        assert {message.id for message in copy.claim(100)} == set(ids[10:])


@pytest.mark.parametrize(
    ("kind", "empty", "content"),
    [
        ("map<string,int>", {}, {}),
        ("struct<tags:map<string,int>,list:array<int>>", ({}, []), {"tags": {}, "list": []}),
        ("array<map<string,int>>", [{}], [{}]),
        ("array<int>", [], []),
    ],
)
def test_what_is_empty_is_stored_as_what_it_is(numbers: Numbers, kind: str, empty: object, content: object) -> None:
    register(numbers.spark)
    frame = numbers.spark.createDataFrame([("a", empty)], f"id string, message {kind}")

    frame.write.format("homing").option("url", numbers.pipeline.store).mode("append").save()

    (message,) = numbers.stores.store.claim(1)
    assert message.content == content


def test_a_session_that_registered_nothing_finds_the_source_by_itself(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/inbox.db?store=orders"
    with open_store(url) as store:
        ids = store.store_many([{"n": n} for n in range(5)])
    program = f"""
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[1]").getOrCreate()
waiting = spark.read.format("homing").option("url", {url!r}).load()
print("found", sorted(row.id for row in waiting.where(waiting.id > {ids[1]!r}).select("id").collect()))
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert f"found {ids[2:]}" in ended.stdout, ended.stderr
