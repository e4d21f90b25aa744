"""Messages that kill: a worker, the driver, from within handlers of both kinds. Each ends as a dead letter, alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from homing.delivery import Batch, open_pipeline_stores, run_audit
from homing.failure import read_record
from homing.spark.engine import Engine, Pipeline
from homing.spark.jobs import survive_crashes
from tests.spark.conftest import FLOWS, Numbers, delivered
from tests.spark.test_applications import submit

pytestmark = pytest.mark.timeout(600)

CRASH = "homing.WorkerCrash"


def open_numbers(spark: SparkSession, folder: Path, chain: str, flow: str) -> Iterator[Numbers]:
    database = f"sqlite:///{folder}/numbers.db"
    pipeline = Pipeline(f"{chain}:chain", f"{database}?store=numbers", f"{database}?store=numbers_dead")
    with open_pipeline_stores(pipeline.store, pipeline.dead_letter_store) as stores:
        yield Numbers(spark, stores, pipeline, folder, (flow,))


@pytest.fixture
def slowly(spark: SparkSession, tmp_path: Path, clean_output: Path) -> Iterator[Numbers]:
    """A chain of one handler, which takes messages."""
    yield from open_numbers(spark, tmp_path, "cluster_chain", "slow")


@pytest.fixture
def deadly(spark: SparkSession, tmp_path: Path, clean_output: Path) -> Iterator[Numbers]:
    """A chain of handlers that take DataFrames."""
    yield from open_numbers(spark, tmp_path, "deadly_chain", "archive")


def step(numbers: Numbers, batch: Batch, name: str, work: Callable[[Engine], object]) -> None:
    """As the application does it, in this process."""
    ledger = numbers.stores.ledger
    survive_crashes(
        ledger, lambda: ledger.open_step(batch.run_id, name, 600), lambda fence: work(numbers.at(batch, fence))
    )


def first_pass(numbers: Numbers, batch: Batch) -> None:
    step(numbers, batch, "process", lambda engine: engine.process(numbers.work))
    for flow in numbers.flows:
        step(numbers, batch, f"deliver.{flow}", lambda engine, flow=flow: engine.deliver(flow, numbers.work))


def replay(numbers: Numbers, of: str) -> Batch:
    batch = numbers.batch(f"replay of {of}")
    assert batch.reclaim(batch.unfinished(of)) > 0
    return batch


def dead(numbers: Numbers) -> dict[int, str]:
    """The number in each dead letter, and its reason."""
    letters = numbers.stores.dead_letters.claim(100)
    return {read_record(letter.content).message.content["n"]: letter.dead_letter_reason or "" for letter in letters}


def archived(output: Path) -> list[int]:
    lines = [line for path in output.glob("archive/*.json") for line in path.read_text().splitlines()]
    return sorted(json.loads(json.loads(line)["message"])["n"] for line in lines)


@pytest.mark.parametrize("place", ["source", "lake"])
def test_what_kills_its_worker_again_in_its_replay_is_a_dead_letter(numbers: Numbers, output: Path, place: str) -> None:
    batch = numbers.claim("run", *[{"n": n, "exit": place if n in (3, 7) else ""} for n in range(10)])
    first_pass(numbers, batch)
    assert batch.settle().failed == 2

    again = replay(numbers, "run")
    step(numbers, again, "replay", lambda engine: engine.replay())

    assert again.acknowledge_complete() == 2
    assert again.finish_replay().dead_lettered == 2
    assert dead(numbers) == {3: CRASH, 7: CRASH}
    assert sorted({n for n, _, _ in delivered(output, "lake")}) == [0, 1, 2, 4, 5, 6, 8, 9]
    assert run_audit(numbers.stores, FLOWS).balanced


def test_a_message_whose_memory_ends_its_worker_is_found_and_the_rest_goes_on(numbers: Numbers, output: Path) -> None:
    batch = numbers.claim("run", *[{"n": n, "overflow": "lake" if n == 4 else ""} for n in range(10)])

    first_pass(numbers, batch)

    assert sorted({n for n, _, _ in delivered(output, "lake")}) == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    settlement = batch.settle()
    assert (settlement.acknowledged, settlement.failed) == (9, 1)
    ((_, _, message_id),) = batch.unfinished("run")
    error = numbers.stores.ledger.entries([message_id])[message_id]["lake"].error
    assert error is not None
    assert error["type"] == CRASH


@pytest.mark.parametrize("place", ["source", "archive"])
def test_what_kills_the_worker_of_a_dataframe_handler_is_found_by_halving(
    deadly: Numbers, output: Path, place: str
) -> None:
    contents = [{"n": n, "die": "worker", "at": place if n == 5 else ""} for n in range(8)]
    batch = deadly.claim("run", *contents)

    first_pass(deadly, batch)

    settlement = batch.settle()
    assert (settlement.acknowledged, settlement.failed) == (7, 1)
    assert sorted(set(archived(output))) == [0, 1, 2, 3, 4, 6, 7]

    again = replay(deadly, "run")
    step(deadly, again, "replay", lambda engine: engine.replay())
    assert again.finish_replay().dead_lettered == 1
    assert dead(deadly) == {5: CRASH}
    assert run_audit(deadly.stores, deadly.flows).balanced


def deliver(numbers: Numbers, output: Path, run_id: str) -> int:
    """One try of the task that delivers; the exit code."""
    (flow,) = numbers.flows
    arguments = ["--chain", numbers.pipeline.chain, "--run-id", run_id, "--flow", flow, "--work-dir", numbers.work]
    return submit(numbers, output, "deliver.py", *arguments).returncode


def test_what_kills_the_driver_is_a_dead_letter_in_the_end_even_without_retries(slowly: Numbers, output: Path) -> None:
    slowly.stores.store.store_many([{"n": n, "kill": n == 4} for n in range(8)])
    # A run whose tasks are tried once, again and again, until nothing is left to claim.
    for number in range(4):
        batch = slowly.batch(f"run {number}")
        if not batch.claim(100):
            break
        deliver(slowly, output, batch.run_id)
        settlement = batch.settle()
        if settlement.failed:
            failed_in = batch.run_id
    assert slowly.stores.store.count()["acknowledged"] == 8  # seven delivered, one in the failure store
    assert slowly.stores.failures.count()["available"] == 1

    again = replay(slowly, failed_in)
    killed = submit(slowly, output, "replay.py", "--chain", slowly.pipeline.chain, "--run-id", again.run_id)

    assert killed.returncode != 0
    assert again.finish_replay().dead_lettered == 1
    assert dead(slowly) == {4: CRASH}
    made = [int(line) for path in output.glob("slow-*") for line in path.read_text().splitlines()]
    assert sorted(set(made)) == [0, 1, 2, 3, 5, 6, 7]
    assert run_audit(slowly.stores, slowly.flows).balanced


def test_what_kills_the_driver_from_within_a_dataframe_handler_is_a_dead_letter_in_the_end(
    deadly: Numbers, output: Path
) -> None:
    batch = deadly.claim("run", *[{"n": n, "die": "driver", "at": "archive" if n == 2 else ""} for n in range(6)])

    codes = [deliver(deadly, output, "run") for _ in range(3)]  # once to notice, once to find it

    assert [code == 0 for code in codes] == [False, False, True]
    settlement = batch.settle()
    assert (settlement.acknowledged, settlement.failed) == (5, 1)
    assert sorted(set(archived(output))) == [0, 1, 3, 4, 5]

    again = replay(deadly, "run")
    submit(deadly, output, "replay.py", "--chain", deadly.pipeline.chain, "--run-id", again.run_id)
    assert again.finish_replay().dead_lettered == 1
    assert dead(deadly) == {2: CRASH}
    assert run_audit(deadly.stores, deadly.flows).balanced
