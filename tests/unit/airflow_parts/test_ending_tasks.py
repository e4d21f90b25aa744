"""A task that Airflow ends, because its time is up or somebody said so, has died of no message and failed none."""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from airflow.sdk.exceptions import AirflowTaskTerminated, AirflowTaskTimeout
from airflow.sdk.execution_time.timeout import timeout as airflow_timeout

from homing.airflow import PipelineConfig, ReplayOperator
from homing.airflow.operators.settle import SettleOperator, SettleReplayOperator
from homing.airflow.operators.spark import DeliverOperator
from homing.delivery import PipelineStores
from tests.unit.airflow_parts.conftest import context
from tests.unit.delivery.conftest import Pipeline

CHAIN = """
import os, time
from homing import HandlerChain, destination

@destination
def lake(content):
    open(os.environ["BEGUN"], "w").close()
    time.sleep(600)

chain = HandlerChain("orders", destinations_flow=lake)
"""


@pytest.fixture
def begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that the destination makes when it has a message in hand, which it never gives back."""
    monkeypatch.setenv("BEGUN", str(tmp_path / "begun"))
    return tmp_path / "begun"


@pytest.fixture
def spec(
    begun: Path, urls: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[PipelineConfig]:
    (tmp_path / "hanging_chain.py").write_text(CHAIN)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[1]"}))
    stores = {"store": urls[0], "dead_letter_store": urls[1]}
    yield PipelineConfig("orders", chain="hanging_chain:chain", work_dir=str(tmp_path / "work"), **stores)
    sys.modules.pop("hanging_chain", None)


@pytest.fixture
def held(stores: PipelineStores, spec: PipelineConfig) -> PipelineStores:
    """A run that holds one message."""
    Pipeline(stores).claimed("orders/run", 1)
    return stores


@pytest.fixture
def failed(stores: PipelineStores, spec: PipelineConfig) -> list[str]:
    """A message that waits for its replay."""
    pipeline = Pipeline(stores)
    batch, ids = pipeline.claimed("first", 1)
    pipeline.failed("first", ids[0], "lake")
    batch.settle()
    return ids


def once_begun(begun: Path, number: signal.Signals) -> threading.Thread:
    """Sends this process a signal as soon as the destination has its message in hand."""

    def send() -> None:
        for _ in range(6_000):
            if begun.exists():
                signal.pthread_kill(threading.main_thread().ident or 0, number)
                return
            time.sleep(0.01)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    return thread


@pytest.fixture
def on_alarm() -> Iterator[None]:
    before = signal.getsignal(signal.SIGALRM)
    yield
    signal.signal(signal.SIGALRM, before)


def crashes(stores: PipelineStores) -> set[int]:
    pages = (*stores.store.scans().pages(["sequence", "crashes"], 0, 10**9),
             *stores.failures.scans().pages(["sequence", "crashes"], 0, 10**9))  # fmt: skip
    return {row[1] for page in pages for row in page}


def test_a_job_whose_time_is_up_is_ended_and_blames_no_message(
    held: PipelineStores, spec: PipelineConfig, begun: Path, on_alarm: None
) -> None:
    operator = DeliverOperator(task_id="lake", pipeline=spec, flow="lake")
    once_begun(begun, signal.SIGALRM)
    with pytest.raises(AirflowTaskTimeout), airflow_timeout(600):
        operator.execute(context())

    assert operator._client is not None
    assert operator._client.poll() is not None
    assert held.ledger.left_open("orders/run") == []
    SettleOperator(task_id="settle", pipeline=spec, replay_dag_id="orders_replay").execute(context())
    assert held.store.count()["available"] == 1
    assert crashes(held) == {0}


def test_a_replay_in_the_task_whose_time_is_up_dead_letters_no_innocent(
    failed: list[str], stores: PipelineStores, spec: PipelineConfig, begun: Path, on_alarm: None
) -> None:
    operator = ReplayOperator(task_id="replay", pipeline=spec, ids=failed, rate=10)
    once_begun(begun, signal.SIGALRM)
    with pytest.raises(AirflowTaskTimeout), airflow_timeout(600):
        operator.execute(context("replay"))

    SettleReplayOperator(task_id="settle", pipeline=spec).execute(context("replay"))
    assert (stores.failures.count()["available"], stores.dead_letters.count()["available"]) == (1, 0)
    assert crashes(stores) == {0}


def test_a_replay_in_the_task_that_somebody_ends_ends_and_dead_letters_no_innocent(
    failed: list[str], stores: PipelineStores, spec: PipelineConfig, begun: Path
) -> None:
    operator = ReplayOperator(task_id="replay", pipeline=spec, ids=failed, rate=10)

    def as_airflow_does(number: int, frame: object) -> None:
        operator.on_kill()

    before = signal.signal(signal.SIGTERM, as_airflow_does)
    try:
        once_begun(begun, signal.SIGTERM)
        with pytest.raises(AirflowTaskTerminated):
            operator.execute(context("replay"))
    finally:
        signal.signal(signal.SIGTERM, before)

    SettleReplayOperator(task_id="settle", pipeline=spec).execute(context("replay"))
    assert (stores.failures.count()["available"], stores.dead_letters.count()["available"]) == (1, 0)
    assert crashes(stores) == {0}
