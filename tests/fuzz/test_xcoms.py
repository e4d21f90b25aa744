"""Whatever stands in an XCom of ours: who reads it, in the scheduler, the API server or a task, goes on."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from airflow.models.dagrun import DagRun
from airflow.models.taskinstance import TaskInstance, TaskInstanceNote
from airflow.models.xcom import XComModel
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException
from hypothesis import example, given
from hypothesis import strategies as st
from sqlalchemy.orm import Session

from homing.airflow import PipelineConfig, ReplayOperator, task_notes, xcoms
from homing.airflow.operators.select import ApproveReplayOperator
from homing.airflow.plugin import messages_page
from homing.airflow.task_notes import SHOWN
from homing.delivery import PipelineStores, open_pipeline_stores
from homing.delivery.status import message_status
from homing.json_values import is_unicode
from tests.fuzz.profile import JSON_VALUES, TEXTS, examples
from tests.fuzz.shop import fill, still_there
from tests.servers import PostgreSQL
from tests.unit.airflow_parts.conftest import DAG_OF_OURS, FakeTask, metadata_in

_SOURCES = Path(xcoms.__file__).parent
_DEEP = st.integers(1, 6_000).map(lambda depth: "[" * depth + "]" * depth)
_LONG = st.builds(lambda text, times: text * times, TEXTS, st.sampled_from([1, 500, 50_000, 400_000]))
_VALUES = JSON_VALUES | _LONG | st.lists(TEXTS, max_size=5) | st.sampled_from([2**70, -(10**300), 1e308])
#: As a value can stand in Airflow's column: JSON, JSON in a string, or broken.
_COLUMNS = st.one_of(
    _VALUES.map(json.dumps),
    _VALUES.map(lambda value: json.dumps(json.dumps(value))),
    _DEEP,
    _DEEP.map(json.dumps),
    TEXTS,
).filter(lambda column: column.isascii())
_KEPT = {"waits 1", "failed 1", "dead 1"}


@pytest.fixture(scope="module")
def metadata() -> Iterator[Session]:
    with metadata_in("sqlite://") as session:
        yield session


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    database = f"sqlite:///{tmp_path_factory.mktemp('xcoms')}/x.db"
    return f"{database}?store=orders", f"{database}?store=orders_dead"


@pytest.fixture(scope="module")
def stores(urls: tuple[str, str]) -> Iterator[PipelineStores]:
    with open_pipeline_stores(*urls) as opened:
        fill(opened, "1")
        yield opened


def push(session: Session, key: str, column: str) -> None:
    """Puts this text where an XCom of the task `settle` stands."""
    table = XComModel.__table__
    session.execute(sa.delete(table).where(table.c.task_id == "settle"))
    about = {"dag_run_id": 1, "dag_id": "orders", "run_id": "run", "task_id": "settle", "map_index": -1}
    session.execute(sa.insert(table).values(**about, key=key, timestamp=sa.func.now()))
    session.execute(sa.text("update xcom set value = :column where task_id = 'settle'"), {"column": column})
    session.commit()


# -- in the scheduler ------------------------------------------------------------------------------------------


@examples(150)
@given(_COLUMNS)
@example("[" * 4_000 + "]" * 4_000)
@example('"' + "[" * 4_000 + '"')
@example("9" * 5_000)
@example(json.dumps("\ud800\0" * 600))
def test_the_schedulers_session_survives_every_note(metadata: Session, column: str) -> None:
    metadata.execute(sa.delete(TaskInstanceNote))
    push(metadata, xcoms.NOTE, column)
    run = metadata.scalar(sa.select(DagRun))
    assert run is not None
    run.dag, run.state = DAG_OF_OURS, "running"
    metadata.commit()
    run.state = "failed"  # what the scheduler itself is about to write

    task_notes.on_dag_run_failed(dag_run=run)
    metadata.commit()
    metadata.expire_all()

    said = {task.task_id: task.note for task in metadata.scalars(sa.select(TaskInstance))}
    assert metadata.scalar(sa.select(DagRun.state)) == "failed"
    assert said["other"] == "other is done."  # whatever a neighbour pushed
    assert said["settle"] is None or (len(said["settle"]) <= 1000 and "\0" not in said["settle"])
    (said["settle"] or "").encode()  # which not every text can be


# -- in the API server -----------------------------------------------------------------------------------------


@examples(150)
@given(_COLUMNS)
@example(r'["\ud800", "a\u0000b", "<script>"]')
@example(json.dumps(["x"] * 5_000))
@example(json.dumps(["y" * 5_000] * 1_000))
def test_the_page_survives_every_choice_of_ids(metadata: Session, stores: PipelineStores, column: str) -> None:
    push(metadata, xcoms.IDS, column)

    ids = messages_page._ids_of(metadata, "orders", "run", "settle", -1)

    assert ids is None or (len(ids) <= SHOWN and all(isinstance(each, str) for each in ids))
    assert ids is None or len(column) <= 2_000_000  # a longer one is not read
    page = messages_page._table(message_status(stores, ["crm"], ids=ids or ()), ["crm"])
    assert b"<script" not in page.encode()


# -- in a task -------------------------------------------------------------------------------------------------


@examples(40)
@given(_VALUES)
@example({"failed 1": 1})
@example("failed 1")
@example([["failed 1"]])
@example(["\ud800", "\0", "failed 1' or '1'='1"])
def test_a_task_refuses_what_select_cannot_have_returned_or_finds_nothing(
    urls: tuple[str, str], stores: PipelineStores, selected: Any
) -> None:
    spec = PipelineConfig(
        "orders",
        chain="tests.trust.dags.trust_chain:chain",
        store=urls[0],
        dead_letter_store=urls[1],
        work_dir="/nowhere",
    )
    tasks = [
        lambda: ReplayOperator(task_id="replay", pipeline=spec, ids=selected, rate=1e6).execute(
            FakeTask("xcom").context
        ),
        lambda: approve(spec, selected),
    ]
    named = isinstance(selected, list) and all(isinstance(name, str) and is_unicode(name) for name in selected)
    usable = selected is None or named
    for task in tasks:
        if usable:
            task()
        else:
            with pytest.raises(AirflowFailException, match="clear it"):
                task()
    assert still_there(stores, _KEPT) == _KEPT


def approve(spec: PipelineConfig, selected: Any) -> None:
    with pytest.MonkeyPatch.context() as patch, DAG("orders_replay", schedule=None):
        patch.setattr("airflow.providers.standard.operators.hitl.ApprovalOperator.execute", lambda *_: None)
        asks = ApproveReplayOperator(task_id="approve", pipeline=replace(spec, approve_replays_above=0), ids=selected)
        asks.execute(FakeTask("xcom").context)


# -- on another database, and for other keys -------------------------------------------------------------------


@pytest.mark.services
@pytest.mark.parametrize("column", ['"settle is done."', r'"\"settle is done.\""', '["a"]', "17", '{"a": [[[]]]}'])
def test_postgresql_keeps_xcoms_in_another_way_and_they_are_read_the_same(postgresql: PostgreSQL, column: str) -> None:
    url = postgresql.empty_database().replace("postgresql://", "postgresql+psycopg://")
    with metadata_in(url) as session:
        for key in (xcoms.NOTE, xcoms.IDS):
            table = XComModel.__table__
            session.execute(sa.update(table).where(table.c.task_id == "settle").values(key=key))
            session.execute(
                sa.text("update xcom set value = cast(:column as jsonb) where task_id = 'settle'"), {"column": column}
            )
            run = session.scalar(sa.select(DagRun))
            assert run is not None
            run.dag = DAG_OF_OURS
            task_notes.on_dag_run_failed(dag_run=run)
            session.commit()
        said = {task.task_id: task.note for task in session.scalars(sa.select(TaskInstance))}
        assert said["other"] == "other is done."
        assert said["settle"] == ("settle is done." if "settle" in column else None)
        assert messages_page._ids_of(session, "orders", "run", "settle", -1) == (["a"] if column == '["a"]' else None)


def test_every_xcom_is_named_in_one_place_and_those_that_are_read_are_tested_here() -> None:
    """A key that is written out elsewhere, or read without a test of its own, fails this one."""
    pushed, read = set[str](), set[str]()
    for source in sorted(_SOURCES.rglob("*.py")):
        for node in ast.walk(ast.parse(source.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                if node.func.attr == "xcom_push":
                    pushed |= {name_of(each.value) for each in node.keywords if each.arg == "key"}
                elif node.func.attr in ("xcom_pull", "get_one", "get_many"):
                    read |= {name_of(each.value) for each in node.keywords if each.arg == "key"}
            elif isinstance(node, ast.Compare) and ast.unparse(node.left) == "XComModel.key":
                read |= {name_of(each) for each in node.comparators}
            elif isinstance(node, ast.Attribute) and node.attr == "output":
                read.add("SELECTED")  # an operator's result, for another one

    assert {getattr(xcoms, name) for name in read} == xcoms.READ
    assert pushed == {"NOTE", "IDS", "PLAN", "xcom_key"}  # the last is that of a link, which Airflow reads
    assert {"NOTE", "IDS", "SELECTED"} == {name for name in vars(xcoms) if vars(xcoms)[name] in list(xcoms.READ)}


def name_of(node: ast.expr) -> str:
    assert isinstance(node, ast.Name | ast.Attribute), f"a key of an XCom is written out: {ast.unparse(node)}"
    return node.id if isinstance(node, ast.Name) else node.attr
