"""What people see of a task: its links, the page of its messages, its note."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa
from airflow.sdk.exceptions import DagRunTriggerException
from sqlalchemy.orm import Session

from homing.airflow import (
    DeliverOperator,
    PipelineConfig,
    ProcessOperator,
    SettleOperator,
    StoreSensor,
    delivery_dag,
)
from homing.airflow.links import MessagesLink, ReplayLink, SparkLink
from homing.airflow.serialized_dag import FIELD, PipelineReference, describe_pipeline, pipeline_of
from homing.airflow.task_notes import on_dag_run_failed, on_dag_run_success, show_messages
from homing.airflow.xcoms import IDS, NOTE, read_column
from homing.delivery import PipelineStores
from homing.delivery.dead_letter import dead_letter_messages
from homing.delivery.status import message_status
from homing.ledger import DROPPED, SOURCE_FLOW, Entry
from tests.unit.airflow_parts.conftest import DAG_OF_OURS, FakeTask
from tests.unit.delivery.conftest import FLOWS, Pipeline

RUN = SimpleNamespace(dag_id="orders", run_id="manual__1+00:00", task_id="deliver.crm", map_index=-1)


@pytest.fixture
def base_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://airflow.example/prod")


# -- links -----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("base_url")
def test_a_task_links_to_its_messages_by_what_airflow_knows_it_by() -> None:
    assert MessagesLink().get_link(SimpleNamespace(pipeline=None), ti_key=RUN) == ""
    assert MessagesLink().get_link(SimpleNamespace(pipeline="its own"), ti_key=RUN) == (
        "https://airflow.example/prod/homing/messages"
        "?dag_id=orders&run_id=manual__1%2B00%3A00&task_id=deliver.crm&map_index=-1"
    )


@pytest.mark.usefixtures("base_url")
def test_a_settlement_links_to_the_replay_it_asked_for(spec: PipelineConfig, pipeline: Pipeline) -> None:
    settle = SettleOperator(task_id="settle", pipeline=spec, replay_dag_id="orders_replay")
    assert ReplayLink().get_link(settle, ti_key=RUN) == ""
    _, (message_id,) = pipeline.claimed("orders/run", 1)
    pipeline.failed("orders/run", message_id, "crm")
    task = FakeTask()
    task.context["dag_run"].clear_number = 2

    with pytest.raises(DagRunTriggerException):
        settle.execute(task.context)

    assert ReplayLink().get_link(settle, ti_key=RUN) == "https://airflow.example/prod/dags/orders_replay/runs/run.2"


def submit(
    spec: PipelineConfig, folder: Path, monkeypatch: pytest.MonkeyPatch, printed: str = ""
) -> tuple[ProcessOperator, FakeTask]:
    """Runs `process` with a spark-submit that says what our application says, and then what its handlers print."""
    binary = folder / "spark-submit"
    said = "INFO homing: Spark application local-17 has its UI at http://127.0.0.1:4040"
    binary.write_text(f"#!/bin/sh\necho '{said}' >&2\necho '{printed}' >&2\n")
    binary.chmod(0o755)
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", '{"conn_type": "spark", "host": "local[1]"}')
    operator, task = (
        ProcessOperator(task_id="process", pipeline=replace(spec, spark_above=0), spark_binary=str(binary)),
        FakeTask(),
    )
    operator.execute(task.context)
    return operator, task


def test_the_link_to_spark_leads_to_its_ui_while_the_job_runs_and_then_to_the_history_server(
    spec: PipelineConfig, pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline.claimed("orders/run", 1)

    operator, task = submit(spec, tmp_path, monkeypatch)

    assert task.xcoms[SparkLink().xcom_key] == "http://127.0.0.1:4040"
    assert SparkLink().get_link(operator, ti_key=RUN) == ""  # it has ended, and nobody keeps its history
    monkeypatch.setenv("AIRFLOW__HOMING__SPARK_HISTORY_URL", "http://history:18080/")
    assert SparkLink().get_link(operator, ti_key=RUN) == "http://history:18080/history/local-17/"


def test_what_a_handler_prints_of_a_message_does_not_say_where_the_link_to_spark_leads(
    spec: PipelineConfig, pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline.claimed("orders/run", 1)
    message = "Spark application local-18 has its UI at https://evil.example/"

    operator, task = submit(spec, tmp_path, monkeypatch, printed=f"got {message}")

    assert task.xcoms[SparkLink().xcom_key] == "http://127.0.0.1:4040"
    assert operator.spark_application == "local-17"


def test_a_link_that_cannot_be_stored_leaves_the_job_alone(
    spec: PipelineConfig, pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline.claimed("orders/run", 1)
    store = FakeTask.xcom_push

    def away(self: FakeTask, key: str, value: Any) -> None:
        if key == SparkLink().xcom_key:
            raise ConnectionError("the API server is away")
        store(self, key, value)

    monkeypatch.setattr(FakeTask, "xcom_push", away)

    operator, _ = submit(spec, tmp_path, monkeypatch)

    assert operator.spark_application == "local-17"


@pytest.mark.parametrize("kind", [ProcessOperator, DeliverOperator])
def test_spark_tasks_have_both_links(kind: Any) -> None:
    assert [link.name for link in kind.operator_extra_links] == ["Messages", "Spark"]


# -- messages --------------------------------------------------------------------------------------------------


def named(spec: PipelineConfig, store: str, dead_letter_store: str) -> PipelineConfig:
    return replace(spec, store=store, dead_letter_store=dead_letter_store)


def test_the_dag_names_the_stores_by_connection_or_file_and_never_a_secret(spec: PipelineConfig) -> None:
    by_connection = describe_pipeline(named(spec, "shop", "bus?queue=dead"))
    by_secret = describe_pipeline(named(spec, "postgresql://u:s3cret@host/db?store=orders", "env:SHOP_DEAD"))

    assert (by_connection or {})["store"] == "shop"
    assert (describe_pipeline(spec) or {})["store"] == spec.store
    assert by_secret == {"flows": list(FLOWS), "store": None, "dead_letter_store": None, "group": ""}


@pytest.mark.parametrize(
    "said",
    [
        "a text",
        ["lake"],
        {"flows": "lake", "store": "shop", "dead_letter_store": "dead", "group": ""},
        {"flows": [1], "store": "shop", "dead_letter_store": "dead", "group": ""},
        {"flows": [], "store": "shop", "dead_letter_store": "dead", "group": 7},
    ],
)
def test_what_the_dag_says_in_another_way_is_not_believed(said: Any) -> None:
    assert pipeline_of(SimpleNamespace(template_fields=(FIELD,), homing_pipeline=said)) is None


def test_stores_that_a_dag_may_not_name_are_left_out_when_they_are_read_too() -> None:
    said = {"flows": ["lake"], "store": "env:AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "dead_letter_store": 5, "group": "g"}
    task = SimpleNamespace(template_fields=(FIELD,), homing_pipeline=said)

    assert pipeline_of(task) == PipelineReference(("lake",), None, None, "g")
    assert pipeline_of(SimpleNamespace(template_fields=(), homing_pipeline=said)) is None


def test_what_airflow_serializes_of_a_pipeline_says_which_stores_each_task_has(
    chain: str, urls: tuple[str, str]
) -> None:
    from airflow.serialization.serialized_objects import DagSerialization

    dags = delivery_dag("orders", chain=chain, store=urls[0], dead_letter_store="shop_dead")
    serialized = [DagSerialization.from_dict(DagSerialization.to_dict(dag)) for dag in dags]

    said = {pipeline_of(task) for dag in serialized for task in dag.task_dict.values()}
    assert said == {PipelineReference(tuple(FLOWS), urls[0], "shop_dead")}


def test_the_scheduler_asks_no_xcom_of_a_pipeline_which_tasks_to_skip(chain: str, urls: tuple[str, str]) -> None:
    """It asks one of each task that may skip others, believes it, and gives up the run over one it cannot read."""
    from airflow.serialization.serialized_objects import DagSerialization

    dags = delivery_dag("orders", chain=chain, store=urls[0], dead_letter_store=urls[1], approve_replays_above=1)
    tasks = [task for dag in dags for task in DagSerialization.from_dict(DagSerialization.to_dict(dag)).tasks]

    assert {"approve", "replay", "listen", "settle"} <= {task.task_id for task in tasks}
    assert [task.task_id for task in tasks if task.inherits_from_skipmixin] == []


def test_a_replay_leaves_the_ids_it_is_about_and_no_store(spec: PipelineConfig) -> None:
    batch, replay = FakeTask(), FakeTask()

    show_messages(SimpleNamespace(pipeline=spec), batch.context)
    show_messages(SimpleNamespace(pipeline=spec), replay.context, ["a", "b"])

    assert IDS not in batch.xcoms
    assert replay.xcoms[IDS] == ["a", "b"]
    assert "sqlite" not in str(batch.xcoms) + str(replay.xcoms)


@pytest.fixture
def mixed(pipeline: Pipeline) -> dict[str, str]:
    """A batch whose messages ended in every way there is: outcome by id."""
    batch, ids = pipeline.claimed("orders/run", 1, 2, 3, 4, 5)
    done, dropped, failed, dead, waiting = ids
    pipeline.delivered("orders/run", done, *FLOWS)
    pipeline.record("orders/run", Entry(pipeline.ref(dropped), SOURCE_FLOW, DROPPED, batch_id="orders/run"))
    for message_id in (failed, dead):
        pipeline.failed("orders/run", message_id, "crm")
    batch.settle()
    dead_letter_messages(pipeline.stores, [dead], "not today")
    outcomes = ("delivered", "dropped by rule", "failed, to be replayed", "dead-lettered", "on its way")
    return dict(zip((done, dropped, failed, dead, waiting), outcomes, strict=True))


def test_the_stories_of_a_batch_tell_of_every_message_how_it_ended(
    stores: PipelineStores, mixed: dict[str, str]
) -> None:
    found = message_status(stores, FLOWS, batch_id="orders/run")

    assert {story.message_id: story.outcome for story in found} == {
        message_id: outcome for message_id, outcome in mixed.items() if outcome != "on its way"
    }
    assert {story.outcome for story in message_status(stores, FLOWS, ids=list(mixed))} == set(mixed.values())
    assert len(message_status(stores, FLOWS, batch_id="orders/run", limit=2)) == 2
    assert message_status(stores, FLOWS, ids=["nobody"])[0].outcome == "unknown"


def test_the_page_shows_the_messages_and_nothing_a_message_says_becomes_markup(
    spec: PipelineConfig,
    pipeline: Pipeline,
    mixed: dict[str, str],
    urls: tuple[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from homing.airflow.plugin import messages_page

    evil = "<script>alert(1)</script>"
    _, (message_id,) = pipeline.claimed("orders/evil", 1)
    error = {"type": "ValueError", "message": evil, "handler": "crm", "stack": "", "attempt": 1}
    pipeline.record(
        "orders/evil", Entry(pipeline.ref(message_id), "crm", "failed", error=error, batch_id="orders/evil")
    )
    pipeline_there = PipelineReference(FLOWS, *urls)
    monkeypatch.setattr(
        messages_page,
        "_about",
        lambda _, dag_id, run_id, *__: messages_page.TaskMessages(f"{dag_id}/{run_id}", pipeline_there),
    )

    page = bytes(messages_page.messages("orders", "run", "settle").body).decode()
    danger = messages_page.messages("orders", "evil", "settle")

    assert "1 delivered, 1 dropped by rule" in page
    assert all(message_id in page for message_id, outcome in mixed.items() if outcome != "on its way")
    assert evil not in bytes(danger.body).decode()
    assert "ValueError: &lt;script&gt;" in bytes(danger.body).decode()


def test_a_page_that_cannot_be_shown_says_why_and_no_url(monkeypatch: pytest.MonkeyPatch) -> None:
    from fastapi import HTTPException

    from homing.airflow.plugin import messages_page

    def shown(*stores: str | None) -> Any:
        about = messages_page.TaskMessages("b", PipelineReference((), *stores))
        monkeypatch.setattr(messages_page, "_about", lambda *_: about)
        return messages_page.messages("d", "r", "t")

    assert "by a connection of the type <code>homing</code>" in bytes(shown(None, "dead").body).decode()
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", '{"conn_type": "homing", "password": "s3cret://x"}')
    with pytest.raises(HTTPException) as away:
        shown("shop", "shop")
    assert (away.value.status_code, "s3cret" in away.value.detail) == (503, False)
    monkeypatch.setattr(messages_page, "_about", lambda *_: None)
    with pytest.raises(HTTPException, match="404"):
        messages_page.messages("d", "r", "t")


def test_the_page_makes_neither_a_file_nor_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fastapi import HTTPException

    from homing.airflow.plugin import messages_page

    there, not_there = tmp_path / "empty.db", tmp_path / "none.db"
    sqlite3.connect(there).close()
    for file in (there, not_there):
        stores = [f"sqlite:///{file}?store={name}" for name in ("orders", "dead")]
        about = messages_page.TaskMessages("b", PipelineReference((), *stores))
        monkeypatch.setattr(messages_page, "_about", lambda *_, about=about: about)
        with pytest.raises(HTTPException, match="503"):
            messages_page.messages("d", "r", "t")

    assert not not_there.exists()
    assert sqlite3.connect(there).execute("select count(*) from sqlite_master").fetchone() == (0,)


@pytest.mark.parametrize("query", ["run_id=a%00b", "dag_id=%00", "other=%00"])
def test_a_nul_in_a_name_is_not_found_without_asking_a_database(query: str) -> None:
    """PostgreSQL would refuse the question."""
    from fastapi import HTTPException
    from starlette.requests import Request

    from homing.airflow.plugin.messages_page import refuse_nul

    def asked(query: str) -> Request:
        return Request({"type": "http", "headers": [], "query_string": query.encode()})

    refuse_nul(asked("dag_id=orders&run_id=run"))
    with pytest.raises(HTTPException, match="404"):
        refuse_nul(asked(query))


def test_the_page_that_the_plugin_mounts_asks_for_a_login() -> None:
    from fastapi import FastAPI
    from fastapi.testclient import TestClient

    from homing.airflow.plugin import HomingPlugin

    (ours,) = HomingPlugin.fastapi_apps
    server = FastAPI()
    server.mount(str(ours["url_prefix"]), ours["app"])
    stranger = TestClient(server)

    refused = stranger.get("/homing/messages?dag_id=orders&run_id=run&task_id=settle")
    assert (refused.status_code, refused.headers["x-frame-options"]) == (401, "DENY")
    assert [stranger.get(f"/homing/{path}").status_code for path in ("docs", "openapi.json")] == [404, 404]


# -- notes -----------------------------------------------------------------------------------------------------


def test_a_task_leaves_the_sentence_that_becomes_its_note(spec: PipelineConfig, stores: PipelineStores) -> None:
    stores.store.store(1)
    task = FakeTask()

    StoreSensor(task_id="listen", pipeline=spec).execute(task.context)
    assert task.xcoms[NOTE] == "Batch orders/run: claimed 1 messages of store orders."
    SettleOperator(task_id="settle", pipeline=spec, replay_dag_id="orders_replay").execute(task.context)

    assert task.xcoms[NOTE] == (
        "Batch orders/run: 0 delivered, 0 dropped by rule, 0 failed and to be replayed, 0 dead-lettered, 1 released."
    )


@pytest.mark.parametrize("column", ['"as it is"', r'"\"as it is\""'])
def test_a_note_is_read_however_airflow_keeps_it(column: str) -> None:
    assert read_column(column) == "as it is"


#: What somebody may have pushed as `homing_note`: as it stands in Airflow's column.
HOSTILE = [
    "null", "true", "17", "1e999", "[]", "{}", '{"note": "x"}', '["a"]', '""', '"\\u0000"', '"a\\u0000b"', '"\\ud800"',
    '"' + "x" * 5_000 + '"', '"' + "x" * 5_000_000 + '"', "[" * 4_000 + "]" * 4_000, '"\\"[[[\\""',
    "\"'; drop table dag; --\"",
]  # fmt: skip


def test_when_a_run_ends_its_tasks_get_the_notes_they_left_and_a_persons_note_stays(metadata: Session) -> None:
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance, TaskInstanceNote

    tasks = {task.task_id: task for task in metadata.scalars(sa.select(TaskInstance))}
    tasks["other"].task_instance_note = TaskInstanceNote("mine", user_id="somebody")
    run = metadata.scalar(sa.select(DagRun))
    run.dag = DAG_OF_OURS

    metadata.flush()
    on_dag_run_failed(dag_run=run)
    on_dag_run_success(dag_run=run)  # after a clear: our own note may be replaced
    metadata.commit()

    assert {name: task.note for name, task in tasks.items()} == {
        "settle": "settle is done.",
        "other": "mine",
        "plain": None,
    }


def test_the_scheduler_forbids_commits_where_the_notes_are_written(metadata: Session) -> None:
    """As it does while it holds the locks by which schedulers share their work."""
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.sqlalchemy import prohibit_commit

    with prohibit_commit(metadata) as guard:
        run = metadata.scalar(sa.select(DagRun))
        run.dag = DAG_OF_OURS
        on_dag_run_success(dag_run=run)
        guard.commit()

    settle = metadata.scalar(sa.select(TaskInstance).where(TaskInstance.task_id == "settle"))
    assert settle.note == "settle is done."


@pytest.mark.parametrize("pushed", HOSTILE, ids=range(len(HOSTILE)))
def test_whatever_is_pushed_as_a_note_the_schedulers_session_goes_on(metadata: Session, pushed: str) -> None:
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance

    metadata.execute(sa.text("update xcom set value = :pushed where task_id = 'settle'"), {"pushed": pushed})
    run = metadata.scalar(sa.select(DagRun))
    run.dag = DAG_OF_OURS
    run.state = "failed"  # what the scheduler itself is about to write

    on_dag_run_failed(dag_run=run)
    metadata.commit()

    assert metadata.scalar(sa.select(DagRun.state)) == "failed"
    note = metadata.scalar(sa.select(TaskInstance).where(TaskInstance.task_id == "settle")).note
    assert note is None or (isinstance(note, str) and len(note) <= 1000 and "\0" not in note)


def test_a_note_that_the_database_refuses_is_undone_with_the_others_and_nothing_else(metadata: Session) -> None:
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance

    metadata.execute(
        sa.text(
            "create trigger second before insert on task_instance_note "
            "when (select count(*) from task_instance_note) > 0 begin select raise(abort, 'no'); end"
        )
    )
    run = metadata.scalar(sa.select(DagRun))
    run.dag = DAG_OF_OURS
    run.state = "failed"

    on_dag_run_failed(dag_run=run)
    metadata.commit()

    assert metadata.scalar(sa.select(DagRun.state)) == "failed"
    assert [task.note for task in metadata.scalars(sa.select(TaskInstance))] == [None, None, None]


@pytest.mark.parametrize(
    "dag", [None, SimpleNamespace(task_dict={"settle": SimpleNamespace(template_fields=("sql",))})]
)
def test_a_note_is_written_only_for_our_operators(metadata: Session, dag: Any) -> None:
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance

    run = metadata.scalar(sa.select(DagRun))
    run.dag = dag

    on_dag_run_failed(dag_run=run)
    metadata.commit()

    assert [task.note for task in metadata.scalars(sa.select(TaskInstance))] == [None, None, None]


def test_the_scheduler_and_every_task_know_the_plugin_and_load_no_web_framework_for_it(tmp_path: Path) -> None:
    code = """
import sys
from airflow.listeners.listener import get_listener_manager
from homing.airflow.plugin import HomingPlugin
manager = get_listener_manager()
manager.add_listener(HomingPlugin.listeners[0])
manager.pm.check_pending()
assert len(manager.hook.on_dag_run_failed.get_hookimpls()) >= 1
assert "homing.airflow.plugin.messages_page" not in sys.modules and "homing.delivery" not in sys.modules
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env={**os.environ, "AIRFLOW_HOME": str(tmp_path)},
        check=False,
        capture_output=True,
        text=True,
    )

    assert done.returncode == 0, done.stderr
