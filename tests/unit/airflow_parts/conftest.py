from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from homing.airflow import PipelineConfig
from homing.airflow.serialized_dag import FIELD
from homing.airflow.xcoms import NOTE
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
def spec(chain: str, urls: tuple[str, str], tmp_path: Path) -> PipelineConfig:
    return PipelineConfig(
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


#: As the scheduler has it: which of its tasks are our operators'.
DAG_OF_OURS = SimpleNamespace(
    task_dict={name: SimpleNamespace(template_fields=(FIELD,)) for name in ("settle", "other", "plain")}
)


@pytest.fixture
def metadata() -> Iterator[Session]:
    """Airflow's own tables, with a run that has ended: its tasks `settle` and `other` left sentences, `plain` none."""
    with metadata_in("sqlite://") as session:
        yield session


@contextmanager
def metadata_in(url: str) -> Iterator[Session]:
    """The same in this database."""
    from airflow.models import import_all_models
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance
    from airflow.models.xcom import XComModel

    import_all_models()
    engine = sa.create_engine(url)
    DagRun.metadata.create_all(engine)
    key = {"dag_id": "orders", "run_id": "run", "map_index": -1}
    now = datetime.now(timezone.utc)
    with Session(engine) as session:
        run = {"id": 1, "dag_id": "orders", "run_id": "run", "run_type": "manual", "run_after": now}
        session.execute(sa.insert(DagRun.__table__).values(**run))
        for task_id in ("settle", "other", "plain"):
            about = {"pool": "p", "pool_slots": 1, "try_number": 1, "max_tries": 0, "priority_weight": 1}
            task = {"id": uuid4(), "task_id": task_id, "custom_operator_name": "", "executor_config": {}, **about}
            session.execute(sa.insert(TaskInstance.__table__).values(**task, **key))
        for task_id in ("settle", "other"):
            said = {
                "dag_run_id": 1,
                "task_id": task_id,
                "key": NOTE,
                "value": f'"{task_id} is done."',
                "timestamp": now,
            }
            session.execute(sa.insert(XComModel.__table__).values(**said, **key))
        session.commit()
        yield session
    engine.dispose()
