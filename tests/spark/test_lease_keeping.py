"""The driver's heartbeat: a job that takes longer than its lease keeps it, and one that lost it stops."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from homing.delivery import open_pipeline_stores
from homing.spark import jobs, sessions
from homing.spark.engine import Pipeline
from tests.spark.conftest import Numbers

pytestmark = pytest.mark.timeout(300)

LEASE = 9.0
MESSAGES = 1_600  # of 20 milliseconds each, by two tasks: never shorter than 16 seconds


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

    monkeypatch.setattr(sessions, "open_session", session)
    with open_pipeline_stores(pipeline.store, pipeline.dead_letter_store) as stores:
        yield Numbers(spark, stores, pipeline, tmp_path, ("slow",))


def deliver(numbers: Numbers) -> int:
    batch = ["--chain", numbers.pipeline.chain, "--run-id", "run", "--lease", str(LEASE)]
    return jobs.deliver_main([*batch, "--flow", "slow", "--work-dir", numbers.work])


def recorded(numbers: Numbers) -> int:
    ids = [message_id for message_id, _, _ in numbers.stores.store.view.states()]
    return len(numbers.stores.ledger.entries(ids))


def wait_until(done: Callable[[], bool]) -> None:
    limit = time.monotonic() + 120
    while not done():
        assert time.monotonic() < limit
        time.sleep(0.05)


def made(output: Path) -> int:
    return sum(len(path.read_text().splitlines()) for path in output.glob("slow-*"))


def test_a_job_that_takes_longer_than_its_lease_keeps_it(slowly: Numbers) -> None:
    slowly.stores.store.store_many({"n": n} for n in range(MESSAGES))
    batch, rival = slowly.batch("run"), slowly.batch("rival")
    assert batch.claim(MESSAGES, LEASE) == MESSAGES
    lease_ends = time.monotonic() + LEASE

    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(deliver, slowly)
        wait_until(lambda: job.done() or (batch.is_open("deliver.slow") and recorded(slowly) > 0))
        opened = time.monotonic()
        wait_until(lambda: time.monotonic() > max(lease_ends, opened + LEASE) + 0.5)
        assert not job.done()
        assert batch.is_open("deliver.slow")  # what it may record
        assert rival.claim(MESSAGES) == 0  # what it holds
        assert job.result(120) == 0

    assert batch.settle().acknowledged == MESSAGES


def test_a_job_whose_step_was_taken_over_records_nothing_more(slowly: Numbers, output: Path) -> None:
    slowly.claim("run", *[{"n": n} for n in range(MESSAGES)])
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(deliver, slowly)
        wait_until(lambda: recorded(slowly) > 0)
        slowly.stores.ledger.open_step("run", "deliver.slow", 600)
        known = recorded(slowly)
        assert job.result(120) == 1

    assert recorded(slowly) == known < MESSAGES
    assert made(output) < MESSAGES


def test_a_job_that_lost_its_lease_is_cancelled_though_its_tasks_may_still_record(
    slowly: Numbers, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancel, cancelled = sessions.cancel_jobs, list[int]()

    def note(spark: SparkSession) -> None:
        cancelled.append(len(spark.sparkContext.statusTracker().getActiveJobsIds()))
        cancel(spark)

    monkeypatch.setattr(sessions, "cancel_jobs", note)
    slowly.claim("run", *[{"n": n} for n in range(MESSAGES)])
    taken = slowly.stores.store._table.update().values(lock_token="somebody else")  # noqa: S106
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(deliver, slowly)
        wait_until(lambda: recorded(slowly) > 0)
        # Somebody else holds the messages; the step is still this job's, so that no task notices by itself.
        slowly.stores.store._database.write(lambda connection: connection.execute(taken))
        assert job.result(120) == 1

    assert made(output) < MESSAGES
    # What is read page by page is not found any more either: that alone would end the job, too, only later.
    assert cancelled
    assert cancelled[0] > 0
