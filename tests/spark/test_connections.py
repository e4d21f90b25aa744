"""Connections of handlers on Spark: the executors have them while a task runs, and nothing shows or keeps them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest
from pyspark.sql import Row, SparkSession

from homing import connections
from homing.delivery import Batch
from homing.errors import MissingConnectionError
from homing.ledger import SOURCE_FLOW
from tests.airflow.scan import Mark, Scan
from tests.spark.conftest import CHAINS, Numbers, opened
from tests.spark.test_applications import submit

FLOWS = ("lake", "crm")
CRM, OTHER, TOKEN, RULES = (Mark(name) for name in ("crm", "other", "token", "rules"))


def given(password: Mark = CRM) -> dict[str, object]:
    api = {"conn_type": "http", "host": "crm", "password": str(password), "extra": {"token": str(TOKEN)}}
    return {"crm_api": api, "rules": {"conn_type": "http", "password": str(RULES)}}


@pytest.fixture
def connected(spark: SparkSession, tmp_path: Path, clean_output: Path) -> Iterator[Numbers]:
    with opened(spark, tmp_path, "connected_chain:chain", *FLOWS) as numbers:
        yield numbers


def left(folder: Path, name: str) -> set[str]:
    lines = [path.read_text().splitlines() for path in folder.glob(f"{name}-*")]
    return {line for each in lines for line in each}


def digests(*marks: Mark) -> str:
    return " ".join(sha256(str(mark).encode()).hexdigest() for mark in marks)


def variables_of_workers(spark: SparkSession) -> set[str]:
    """What Spark's Python workers, which live on from one job to the next, have in their environment now."""

    def look(_: object) -> Iterator[Row]:
        yield from (Row(name=name) for name in os.environ if name.startswith("AIRFLOW_CONN_"))

    return {row["name"] for row in spark.sparkContext.range(4, numSlices=4).mapPartitions(look).collect()}


def fail_and_replay(connected: Numbers, output: Path, folder: Path) -> Batch:
    batch = connected.claim("run", {"n": 1}, {"n": 2, "fail": True})
    connected.run_all(batch)
    assert connected.states(*FLOWS)["crm"] == {"delivered", "failed"}
    batch.settle()
    kept = b"".join(path.read_bytes() for path in folder.glob("numbers.db*"))
    assert b"no login with *** and ***" in kept  # the failure record, which is to be searched
    (output / "mended").touch()
    replay = connected.batch("replay")
    assert replay.reclaim(replay.unfinished("run")) == 1
    return replay


def test_executors_have_them_while_a_task_runs_and_a_client_is_made_anew_for_what_is_new(
    connected: Numbers, clean_output: Path, tmp_path: Path
) -> None:
    with connections(given()):
        replay = fail_and_replay(connected, clean_output, tmp_path)
    assert variables_of_workers(connected.spark) == set()
    assert left(clean_output, "wanted") == {digests(RULES)}
    assert left(clean_output, "crm") == {digests(CRM, TOKEN, CRM)}
    assert left(clean_output, "lake") == {digests(CRM)}

    with connections(given(OTHER)):
        connected.engine(replay, "replay").replay()
        again = connected.claim("again", {"n": 3})
        connected.run_all(again)
    assert left(clean_output, "crm") == {digests(CRM, TOKEN, CRM), digests(OTHER, TOKEN, OTHER)}
    assert left(clean_output, "lake") == {digests(CRM), digests(OTHER)}
    assert replay.finish_replay().acknowledged == 1

    # Stores, ledger, failure records, work files: nothing keeps what was handed over.
    assert list(Scan([CRM, OTHER, TOKEN, RULES]).files(tmp_path)) == []


def test_a_flow_is_handed_its_own_connections_and_no_others(connected: Numbers) -> None:
    with connections(given()):
        engine = connected.engine(connected.claim("run", {"n": 1}), "process")
        assert set(engine._task(SOURCE_FLOW).connections) == {"rules"}
        task = engine._task("crm")
    assert set(task.connections) == {"crm_api"}
    assert not Scan([CRM, TOKEN]).found_in(repr(task).encode())


def test_without_one_no_spark_job_is_made_and_no_message_fails(connected: Numbers, clean_output: Path) -> None:
    batch = connected.claim("run", {"n": 1})

    with connections({"rules": "http://x"}), pytest.raises(MissingConnectionError, match="destination 'crm'"):
        connected.engine(batch, "deliver.crm").deliver("crm", connected.work)

    settled = batch.settle()
    assert (settled.failed, settled.dead_lettered, settled.released) == (0, 0, 1)


def test_a_submitted_job_shows_them_nowhere(
    connected: Numbers, clean_output: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(CHAINS))
    events = tmp_path / "events"
    events.mkdir()
    conf = ["spark.eventLog.enabled=true", f"spark.eventLog.dir=file://{events}", "spark.eventLog.compress=false"]
    batch = connected.claim("run", {"n": 1}, {"n": 2, "fail": True})
    arguments = ["--chain", "connected_chain:chain", "--run-id", "run", "--work-dir", connected.work, "--flow", "crm"]

    missing = submit(connected, clean_output, "deliver.py", *arguments, conf=conf)
    with connections(given()):
        done = submit(connected, clean_output, "deliver.py", *arguments, conf=conf)

    assert missing.returncode == 2
    assert "there is no connection 'rules', which the filter 'wanted' asks for" in missing.stdout
    assert done.returncode == 0, done.stdout
    assert left(clean_output, "crm") == {digests(CRM, TOKEN, CRM)}
    assert batch.settle().failed == 1
    scan = Scan([CRM, TOKEN, RULES])
    assert any(b"SparkListenerEnvironmentUpdate" in path.read_bytes() for path in events.rglob("*") if path.is_file())
    assert list(scan.files(tmp_path)) == []
    assert scan.found_in(done.stdout.encode()) == set()
