"""A real Spark Connect server on this machine, and the pipeline's tasks as clients of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from socket import create_connection

import pyspark
import pytest
from airflow.sdk.exceptions import AirflowException

from demo.ports import free_port
from homing.airflow import PipelineConfig
from homing.airflow.operators.spark import DeliverOperator, ProcessOperator, ReplayOperator
from homing.delivery import PipelineStores, open_pipeline_stores, run_audit
from tests.servers import PostgreSQL
from tests.spark.conftest import CHAINS, FLOWS, delivered
from tests.unit.airflow_parts.conftest import context

pytestmark = [pytest.mark.services, pytest.mark.timeout(600)]

SUBMIT = Path(pyspark.__file__).parent / "bin" / "spark-submit"
SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
PATIENCE = 180


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The server's address, and where the destinations of the test chain write."""
    folder, port = tmp_path_factory.mktemp("connect"), free_port()
    (folder / "out").mkdir()
    # Without the folder of the chain: that comes with the client.
    environment = {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_CHAIN_OUT": str(folder / "out"),
    }
    settings = [f"spark.connect.grpc.binding.port={port}", "spark.ui.enabled=false"]
    flags = [part for setting in settings for part in ("--conf", setting)]
    command = [str(SUBMIT), "--master", "local[2]", *flags, "--class", SERVER, "spark-internal"]
    with (folder / "server.log").open("wb") as log:
        started = subprocess.Popen(
            command, env=environment, cwd=folder, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        limit = time.monotonic() + PATIENCE
        while not answers(port):
            assert started.poll() is None, (folder / "server.log").read_text()
            assert time.monotonic() < limit
            time.sleep(0.2)
        yield f"sc://127.0.0.1:{port}", folder / "out"
    finally:
        os.killpg(started.pid, signal.SIGKILL)
        started.wait()


def answers(port: int) -> bool:
    try:
        with closing(create_connection(("127.0.0.1", port), 1)):
            return True
    except OSError:
        return False


@pytest.fixture
def pipeline(
    server: tuple[str, Path], postgresql: PostgreSQL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[PipelineConfig, PipelineStores]]:
    database = postgresql.empty_database()
    urls = f"{database}?store=numbers", f"{database}?store=numbers_dead"
    monkeypatch.setenv("NUMBERS", urls[0])
    monkeypatch.setenv("NUMBERS_DEAD", urls[1])
    monkeypatch.setenv("SPARK_CHAIN_OUT", str(server[1]))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": server[0]}))
    monkeypatch.syspath_prepend(str(CHAINS))
    work = str(tmp_path / "work")
    stores = {"store": "env:NUMBERS", "dead_letter_store": "env:NUMBERS_DEAD"}
    spec = PipelineConfig("orders", chain="spark_chain:chain", work_dir=work, **stores)
    with open_pipeline_stores(*urls) as opened:
        yield spec, opened


def test_a_batch_is_processed_delivered_and_replayed_by_a_spark_connect_server(
    pipeline: tuple[PipelineConfig, PipelineStores], server: tuple[str, Path]
) -> None:
    spec, stores = pipeline
    _, output = server
    stores.store.store_many([{"n": n, "fail": "crm" if n == 2 else ""} for n in range(6)])
    run_id = spec.run_key(context())
    with spec.open_batch(run_id) as batch:
        assert batch.claim(10) == 6

    ProcessOperator(task_id="process", pipeline=spec).execute(context())
    for flow in FLOWS:
        DeliverOperator(task_id=flow, pipeline=spec, flow=flow).execute(context())

    assert [n for n, _, _ in delivered(output, "lake")] == [0, 1, 2, 3, 4, 5]
    assert [n for n, _, _ in delivered(output, "crm")] == [0, 4]
    with spec.open_batch(run_id) as batch:
        settlement = batch.settle()
        failed = [ref.name for ref in batch.unfinished(run_id)]
    assert (settlement.acknowledged, settlement.failed) == (5, 1)

    again = context(run_id="again")
    with pytest.raises(AirflowException, match="ended with 1"):
        ReplayOperator(task_id="replay", pipeline=spec, ids=failed).execute(again)
    (output / "mended").touch()
    ReplayOperator(task_id="replay", pipeline=spec, ids=failed).execute(again)

    assert [n for n, _, _ in delivered(output, "crm")] == [0, 2, 4]
    assert run_audit(stores, FLOWS).balanced
