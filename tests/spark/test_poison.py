"""Many messages that make a DataFrame handler fail, among many that do not: each is told from the others."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from homing.delivery import Settlement, run_audit
from homing.ledger import DELIVERED, FAILED, SOURCE_FLOW
from tests.spark.conftest import opened

NUMBER, POISON = 1_000, 100


@pytest.mark.timeout(1800)
def test_a_tenth_that_is_poison_is_found_to_the_message_and_the_rest_is_delivered_once(
    spark: SparkSession, tmp_path: Path, clean_output: Path, sizes: list[int]
) -> None:
    poison = set(random.Random(14).sample(range(NUMBER), POISON))  # noqa: S311 - the same ones every time
    with opened(spark, tmp_path, "native_chain:plain", "lake", "archive") as numbers:
        batch = numbers.claim("run", *[{"n": n, "amount": "a lot" if n in poison else "1"} for n in range(NUMBER)])

        numbers.run_all(batch)

        assert len(sizes) < 700
        assert len(numbers.published("run") or ()) < 20, "what came out of small parts is kept together"
        lake = spark.read.parquet(str(clean_output / "lake")).select("message").collect()
        assert Counter(json.loads(row["message"])["n"] for row in lake) == Counter(set(range(NUMBER)) - poison)
        entries = numbers.stores.ledger.entries([one for one, _, _ in numbers.stores.store.view.states()])
        contents = {message.id: message.content["n"] for message in numbers.stores.store.browse(NUMBER)}
        failed = {contents[one] for one, found in entries.items() if SOURCE_FLOW in found}
        assert failed == poison
        states = Counter((flow, entry.state) for found in entries.values() for flow, entry in found.items())
        assert states == {
            (SOURCE_FLOW, FAILED): POISON,
            ("lake", DELIVERED): NUMBER - POISON,
            ("archive", DELIVERED): NUMBER - POISON,
        }
        assert {entry.deliveries for found in entries.values() for entry in found.values() if entry.done} == {1}
        assert batch.settle() == Settlement(acknowledged=NUMBER - POISON, failed=POISON)
        assert run_audit(numbers.stores, numbers.flows).balanced
