"""A pipeline whose work directory lies in a file system that cannot be reached."""

from __future__ import annotations

from dataclasses import replace

import pytest

from homing.airflow import PipelineConfig, StoreSensor
from homing.airflow.operators.settle import SettleOperator
from homing.delivery import PipelineStores
from homing.errors import WorkDirError
from tests.unit.airflow_parts.conftest import context
from tests.unit.delivery.conftest import Pipeline


@pytest.fixture
def elsewhere(spec: PipelineConfig, monkeypatch: pytest.MonkeyPatch) -> PipelineConfig:
    monkeypatch.setenv("PATH", "/nowhere")  # without Spark there is no way to any
    monkeypatch.delenv("SPARK_HOME", raising=False)
    return replace(spec, work_dir="hdfs://nodes/work")


def test_nothing_is_claimed_for_it(elsewhere: PipelineConfig, stores: PipelineStores) -> None:
    stores.store.store("order")
    with pytest.raises(WorkDirError, match="spark-class"):
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
