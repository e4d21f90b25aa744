"""The driver's heartbeat: a job that takes longer than its lease keeps it, and one that lost it stops."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from homing.delivery import open_pipeline_stores
from homing.spark import app
from homing.spark.engine import Pipeline
from tests.spark.conftest import Numbers

pytestmark = pytest.mark.timeout(300)

LEASE = 4.0
MESSAGES = 900  # of 20 milliseconds each, by two tasks: twice the lease


@pytest.fixture
def slowly(
    spark: SparkSession, tmp_path: Path, clean_output: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Numbers]:
    """A chain that takes its time, run by the application's own main in this process."""
    database = f"sqlite:///{tmp_path}/numbers.db"
    pipeline = Pipeline("cluster_chain:chain", f"{database}?store=numbers", f"{database}?store=numbers_dead")
    monkeypatch.setenv("HOMING_STORE", pipeline.store)
    monkeypatch.setenv("HOMING_DEAD_LETTER_STORE", pipeline.dead_letter_store)

    @contextmanager
    def session(name: str) -> Iterator[SparkSession]:
        yield spark  # which other tests need

    monkeypatch.setattr(app, "open_session", session)
    with open_pipeline_stores(pipeline.store, pipeline.dead_letter_store) as stores:
        yield Numbers(spark, stores, pipeline, tmp_path, ("slow",))


def deliver(numbers: Numbers) -> int:
    batch = ["--chain", numbers.pipeline.chain, "--run-id", "run", "--lease", str(LEASE)]
    return app.deliver_main([*batch, "--flow", "slow", "--work-dir", numbers.work])


def recorded(numbers: Numbers) -> int:
    ids = [message_id for message_id, _, _ in numbers.stores.store.states()]
    return len(numbers.stores.ledger.entries(ids))


def wait_until(done: Callable[[], bool]) -> None:
    limit = time.monotonic() + 120
    while not done():
        assert time.monotonic() < limit
        time.sleep(0.05)


def test_a_job_that_takes_longer_than_its_lease_keeps_it(slowly: Numbers) -> None:
    slowly.stores.store.store_many({"n": n} for n in range(MESSAGES))
    batch = slowly.batch("run")
    assert batch.claim(MESSAGES, LEASE) == MESSAGES

    began = time.monotonic()
    assert deliver(slowly) == 0

    assert time.monotonic() - began > LEASE
    assert batch.settle().acknowledged == MESSAGES


def test_a_job_that_lost_its_lease_is_cancelled_and_records_nothing_more(slowly: Numbers, output: Path) -> None:
    slowly.claim("run", *[{"n": n} for n in range(MESSAGES)])
    codes: list[int] = []
    job = threading.Thread(target=lambda: codes.append(deliver(slowly)))
    job.start()
    wait_until(lambda: recorded(slowly) > 0)

    slowly.stores.ledger.open_step("run", "deliver.slow", 600)  # somebody else takes it over
    known = recorded(slowly)
    job.join(120)

    assert codes == [1]
    assert recorded(slowly) == known < MESSAGES
    made = sum(len(path.read_text().splitlines()) for path in output.glob("slow-*"))
    assert made < MESSAGES
