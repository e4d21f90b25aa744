"""A pipeline whose work directory lies in a file system that cannot be reached."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from homing.airflow import PipelineConfig, StoreSensor
from homing.airflow.operators.settle import SettleOperator
from homing.delivery import PipelineStores
from homing.errors import WorkDirError
from tests.unit.airflow_parts.conftest import context
from tests.unit.delivery.conftest import Pipeline


@pytest.fixture(params=["spark-class", "Spark needs Java"])
def missing(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """What this machine has not: without Spark, and without Java, there is no way to any other file system."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    if request.param != "spark-class":
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / "spark-class").write_text("#!/bin/sh\n")
        (tmp_path / "bin" / "spark-class").chmod(0o755)
    return str(request.param)


@pytest.fixture
def elsewhere(spec: PipelineConfig, missing: str) -> PipelineConfig:
    return replace(spec, work_dir="hdfs://nodes/work")


def test_nothing_is_claimed_for_it(elsewhere: PipelineConfig, stores: PipelineStores, missing: str) -> None:
    stores.store.store("order")
    with pytest.raises(WorkDirError, match=missing):
        StoreSensor(task_id="listen", pipeline=elsewhere).execute(context())
    assert stores.store.count()["available"] == 1


def test_its_messages_are_settled_all_the_same(
    elsewhere: PipelineConfig, stores: PipelineStores, pipeline: Pipeline, caplog: pytest.LogCaptureFixture
) -> None:
    _, ids = pipeline.claimed("orders/run", "order")
    for flow in elsewhere.flows:
        pipeline.delivered("orders/run", ids[0], flow)

    SettleOperator(task_id="settle", pipeline=elsewhere, replay_dag_id="orders_replay").execute(context())

    assert stores.store.count()["acknowledged"] == 1
