"""What a destination may not return is a failure on Spark's executors and of DataFrame destinations too."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from homing.ledger import FAILED
from tests.spark.conftest import opened


def test_nothing_is_delivered_by_destinations_that_return_unfinished_work_or_an_exception(
    spark: SparkSession, tmp_path: Path, clean_output: Path
) -> None:
    flows = ("crm", "archive", "ledger")
    with opened(spark, tmp_path, "unfinished_chain:chain", *flows) as numbers:
        batch = numbers.claim("run", {"n": 1}, {"n": 2})
        numbers.run_all(batch)
        assert numbers.states(*flows) == {flow: {FAILED} for flow in flows}
        ids = [message_id for message_id, _, _ in numbers.stores.store.view.states()]
        errors = numbers.stores.ledger.entries(ids)[ids[0]]
        assert "Future" in (errors["crm"].error or {})["message"]
        assert "generator" in (errors["archive"].error or {})["message"]
        assert "ConnectionError" in str((errors["ledger"].error or {})["type"])
        assert batch.settle().failed == 2
