from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from homing.airflow import PipelineSpec
from homing.delivery import PipelineStores, open_pipeline_stores
from tests.unit.cli.conftest import CHAIN
from tests.unit.delivery.conftest import Pipeline


class FakeTask:
    """The task instance and the run as an operator's `execute` sees them."""

    def __init__(self, run_id: str = "run", dag_id: str = "orders", **params: Any) -> None:
        self.xcoms: dict[str, Any] = {}
        self.context = {
            "dag": SimpleNamespace(dag_id=dag_id, max_active_runs=1),
            "dag_run": SimpleNamespace(clear_number=0),
            "run_id": run_id,
            "params": params,
            "ti": self,
        }
        self.dag_id, self.run_id, self.task_id, self.map_index = dag_id, run_id, "task", -1

    def xcom_push(self, key: str, value: Any) -> None:
        self.xcoms[key] = value

    def xcom_pull(self, task_ids: str, key: str) -> Any:
        return self.xcoms.get(key)


def context(run_id: str = "run", **params: Any) -> Any:
    return FakeTask(run_id, **params).context


@pytest.fixture
def urls(tmp_path: Path) -> tuple[str, str]:
    return f"sqlite:///{tmp_path}/x.db?store=orders", f"sqlite:///{tmp_path}/x.db?store=orders_dead"


@pytest.fixture
def chain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "parts_chain.py").write_text(CHAIN)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "parts_chain:chain"
    sys.modules.pop("parts_chain", None)


@pytest.fixture
def spec(chain: str, urls: tuple[str, str], tmp_path: Path) -> PipelineSpec:
    return PipelineSpec.of(
        "orders", chain=chain, store=urls[0], dead_letter_store=urls[1], work_dir=str(tmp_path / "work")
    )


@pytest.fixture
def stores(urls: tuple[str, str]) -> Iterator[PipelineStores]:
    with open_pipeline_stores(*urls) as stores:
        yield stores


@pytest.fixture
def pipeline(stores: PipelineStores) -> Pipeline:
    return Pipeline(stores)


@pytest.fixture
def failed(pipeline: Pipeline) -> list[str]:
    """Three messages of the batch "first" that the lake has and the CRM refused."""
    batch, ids = pipeline.claimed("first", 1, 2, 3)
    for message_id in ids:
        pipeline.delivered("first", message_id, "lake")
        pipeline.failed("first", message_id, "crm")
    batch.settle()
    return ids
