"""The Spark applications, started by a real spark-submit as an operator would start them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from homing.delivery import open_pipeline_stores, run_audit
from homing.spark.engine import Pipeline
from homing.spark.submit.class_archive import class_archive
from homing.spark.submit.job import find_ui
from tests.servers import PostgreSQL
from tests.spark.conftest import CHAINS, FLOWS, Numbers, delivered

APPLICATIONS = Path(__file__).parents[2] / "spark_apps"


def submit(
    numbers: Numbers,
    output: Path,
    application: str,
    *arguments: str,
    master: str = "local[2]",
    conf: Sequence[str] = (),
) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join([str(CHAINS), os.environ.get("PYTHONPATH", "")]),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_CHAIN_OUT": str(output),
        "HOMING_STORE": numbers.pipeline.store,
        "HOMING_DEAD_LETTER_STORE": numbers.pipeline.dead_letter_store,
    }
    settings = [part for setting in conf for part in ("--conf", setting)]
    command = ["spark-submit", "--master", master, *settings, str(APPLICATIONS / application), *arguments]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with class_archive() as start:
        done = subprocess.run(command, env=environment | start.environment, timeout=800, check=False, **pipes)
        if find_ui(done.stdout):
            start.note_session()
    return done


def test_what_is_set_up_wrongly_ends_with_two_and_one_line_that_says_why(numbers: Numbers, output: Path) -> None:
    done = submit(numbers, output, "process.py", "--chain", "spark_chian:chain", "--run-id", "r", "--work-dir", "w")

    assert done.returncode == 2
    assert "module 'spark_chian' of the chain" in done.stdout


def test_a_batch_that_is_not_held_ends_with_one_and_starts_no_spark_job(numbers: Numbers, output: Path) -> None:
    done = submit(numbers, output, "process.py", "--chain", "spark_chain:chain", "--run-id", "r", "--work-dir", "w")

    assert done.returncode == 1
    assert "holds no messages" in done.stdout
    assert "SparkContext" not in done.stdout


@pytest.mark.services
def test_what_the_spark_ui_shows_has_no_secret(
    spark: SparkSession, postgresql: PostgreSQL, tmp_path: Path, clean_output: Path
) -> None:
    url = postgresql.empty_database().replace("postgres@", "postgres:s3cret@")
    pipeline = Pipeline("spark_chain:chain", f"{url}?store=numbers", f"{url}?store=numbers_dead")
    events, work = tmp_path / "events", str(tmp_path / "work")
    events.mkdir()
    # All that the UI, and later the history server, has to show.
    conf = ["spark.eventLog.enabled=true", f"spark.eventLog.dir=file://{events}", "spark.eventLog.compress=false"]
    with open_pipeline_stores(pipeline.store, pipeline.dead_letter_store) as stores:
        numbers = Numbers(spark, stores, pipeline, tmp_path, FLOWS)
        numbers.claim("run", {"n": 1})
        arguments = ["--chain", pipeline.chain, "--run-id", "run", "--work-dir", work]
        done = submit(numbers, clean_output, "process.py", *arguments, conf=conf)

    shown = "".join(path.read_text() for path in events.rglob("*") if path.is_file())
    assert done.returncode == 0, done.stdout
    assert "SparkListenerEnvironmentUpdate" in shown
    assert "mapInArrow" in shown or "MapInArrow" in shown
    assert "s3cret" in pipeline.store
    assert "s3cret" not in shown + done.stdout


def test_a_replay_ends_with_one_while_a_message_still_fails(numbers: Numbers, output: Path) -> None:
    batch = numbers.claim("run", {"n": 2, "fail": "crm"})
    numbers.engine(batch, "process").process(numbers.work)
    for flow in FLOWS:
        numbers.engine(batch, f"deliver.{flow}").deliver(flow, numbers.work)
    batch.settle()
    replay = numbers.batch("replay")
    replay.reclaim(replay.unfinished("run"))

    failed = submit(numbers, output, "replay.py", "--chain", "spark_chain:chain", "--run-id", "replay")

    assert failed.returncode == 1
    assert "1 messages still fail" in failed.stdout
    assert numbers.pipeline.store not in failed.stdout

    (output / "mended").touch()
    mended = submit(numbers, output, "replay.py", "--chain", "spark_chain:chain", "--run-id", "replay")

    assert mended.returncode == 0
    assert [n for n, _, _ in delivered(output, "crm")] == [2]
    assert run_audit(numbers.stores, FLOWS).total.delivered == 1
