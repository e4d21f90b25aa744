"""Destinations behind a router keep their own threads, rates and circuit breakers on Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from homing.delivery import open_pipeline_stores
from homing.ledger import DELIVERED, FAILED
from homing.spark.engine import Pipeline
from tests.spark.conftest import Numbers

MESSAGES = 120
TASKS = 2


@pytest.fixture
def routed(spark: SparkSession, tmp_path: Path, clean_output: Path) -> Iterator[Numbers]:
    database = f"sqlite:///{tmp_path}/routed.db"
    pipeline = Pipeline("routed_chain:chain", f"{database}?store=routed", f"{database}?store=routed_dead")
    with open_pipeline_stores(pipeline.store, pipeline.dead_letter_store) as stores:
        yield Numbers(spark, stores, pipeline, tmp_path, ("route",))


def calls(output: Path, name: str) -> dict[str, list[tuple[float, int, str]]]:
    """Process -> (when, message, thread) of the calls of a destination."""
    made = {}
    for path in output.glob(f"{name}-*"):
        lines = [line.split() for line in path.read_text().splitlines()]
        made[path.name] = [(float(when), int(n), thread) for when, n, thread in lines]
    return made


def test_each_keeps_its_own_threads_rate_and_breaker(routed: Numbers, output: Path) -> None:
    from routed_chain import FAILURES, RATE  # type: ignore[import-not-found]

    batch = routed.claim("run", *[{"n": n} for n in range(MESSAGES)])
    assert routed.spark.sparkContext.defaultParallelism == TASKS

    routed.run_all(batch)

    ids = [message_id for message_id, _, _ in routed.stores.store.view.states()]
    entries = [found["route"] for found in routed.stores.ledger.entries(ids).values()]
    ended = Counter((entry.destination, entry.state) for entry in entries)
    assert ended == {("rated", DELIVERED): 40, ("threaded", DELIVERED): 40, ("route", FAILED): 40}

    times = sorted(when for made in calls(output, "rated").values() for when, _, _ in made)
    # One task may begin as soon as the other: then there are two calls more than the rate alone would allow.
    assert times[-1] - times[0] >= (len(times) - TASKS) / RATE * 0.95

    tried = calls(output, "down")
    assert sum(map(len, tried.values())) == TASKS * FAILURES
    errors = Counter(entry.error["type"] for entry in entries if entry.error)
    assert errors == {"ConnectionError": TASKS * FAILURES, "homing.errors.CircuitOpenError": 40 - TASKS * FAILURES}

    threads = [len({thread for _, _, thread in made}) for made in calls(output, "threaded").values()]
    assert threads == [4] * TASKS
    # The one that waits for its rate held up none of the others.
    assert max(when for made in calls(output, "threaded").values() for when, _, _ in made) < times[-1]
