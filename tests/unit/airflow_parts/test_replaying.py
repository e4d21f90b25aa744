"""The replay DAG's parts: the form, the frozen selection, dry runs, approval, the rate, the failure callback."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from airflow.sdk import DAG
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowSkipException,
    DagRunTriggerException,
)

from homing.airflow import PipelineConfig, ReplayOperator, SelectOperator, SettleOperator
from homing.airflow.operators.select import ApproveReplayOperator, read_selection, replay_params
from homing.airflow.operators.settle import SettleReplayOperator
from homing.delivery import PipelineStores, run_audit
from homing.errors import ConfigurationError
from homing.retry import RetryPolicy
from tests.unit.airflow_parts.conftest import FakeTask, context
from tests.unit.delivery.conftest import FLOWS, Pipeline, names, waiting


def select(spec: PipelineConfig, **params: Any) -> list[str]:
    return SelectOperator(task_id="select", pipeline=spec).execute(FakeTask(**params).context)


@pytest.mark.parametrize(
    "params",
    [
        {"batch": "first"},
        {"error_group": "crm: ValueError"},
        {"destination": "crm"},
        {"since": "PT1H"},
        {"until": "2099-01-01 00:00 Europe/Berlin"},
    ],
)
def test_the_form_selects(
    spec: PipelineConfig, stores: PipelineStores, failed: list[str], params: dict[str, Any]
) -> None:
    assert sorted(select(spec, **params)) == names(stores, failed)


def test_a_run_that_is_cleared_selects_what_it_selected_before(
    spec: PipelineConfig, stores: PipelineStores, failed: list[str], pipeline: Pipeline
) -> None:
    task = FakeTask(destination="crm", since="PT1H")
    task.context["dag_run"].run_after = datetime.now(timezone.utc)
    batch, (later,) = pipeline.claimed("second", 4)
    pipeline.failed("second", later, "crm")
    batch.settle()

    assert sorted(SelectOperator(task_id="select", pipeline=spec).execute(task.context)) == names(stores, failed)


def test_times_are_told_from_when_the_run_was_asked_for() -> None:
    asked = datetime(2026, 12, 1, 12, tzinfo=timezone.utc)

    selection = read_selection({"since": "PT1H"}, asked)

    assert (selection.since, selection.until) == (asked - timedelta(hours=1), asked)
    assert read_selection({"batch": "first"}, asked).until is None


def test_ids_and_a_limit_narrow_it_down(spec: PipelineConfig, stores: PipelineStores, failed: list[str]) -> None:
    assert select(spec, ids=failed[:1]) == names(stores, failed[:1])
    assert len(select(spec, batch="first", limit=2)) == 2


@pytest.mark.parametrize("params", [{"destination": "lake"}, {"error_group": "crm: KeyError"}, {"until": "PT1H"}])
def test_nothing_that_fits_is_nothing_to_replay(spec: PipelineConfig, failed: list[str], params: Any) -> None:
    with pytest.raises(AirflowSkipException, match="nothing is left"):
        select(spec, **params)


def test_what_nobody_knows_fails_without_a_retry(spec: PipelineConfig, failed: list[str]) -> None:
    with pytest.raises(AirflowFailException, match="message nobody"):
        select(spec, ids=["nobody"])
    with pytest.raises(AirflowFailException, match="batch no such batch"):
        select(spec, batch="no such batch")


@pytest.mark.parametrize("params", [{}, {"limit": 5}, {"since": "yesterday"}, {"since": "PT1M", "until": "PT1H"}])
def test_a_form_that_selects_nothing_in_particular_is_refused(params: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        read_selection(params)


def test_every_field_of_the_form_is_one_that_is_read_and_its_defaults_fit_its_schema() -> None:
    fields = {"batch", "ids", "error_group", "destination", "since", "until", "limit", "rate", "reason", "dry_run"}

    assert set(replay_params()) == fields
    for param in replay_params().values():
        param.resolve()


def test_a_dry_run_says_per_error_group_what_would_happen_and_delivers_nothing(
    spec: PipelineConfig, failed: list[str], stores: PipelineStores
) -> None:
    task = FakeTask(batch="first", dry_run=True)

    with pytest.raises(AirflowSkipException, match="3 messages would be replayed"):
        SelectOperator(task_id="select", pipeline=spec).execute(task.context)

    assert task.xcoms["plan"] == ["crm: ValueError: 3 messages, tries crm again, skips lake where that is done"]
    assert stores.failures.count()["available"] == 3


def replay(spec: PipelineConfig, run_id: str, ids: list[str]) -> None:
    ReplayOperator(task_id="replay", pipeline=spec, ids=ids, rate=1000).execute(context(run_id))


def test_a_replay_acts_on_what_was_selected_and_not_on_what_failed_since(
    spec: PipelineConfig, failed: list[str], stores: PipelineStores, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen = select(spec, error_group="crm: ValueError")
    batch, (later,) = pipeline.claimed("second", 4)
    pipeline.failed("second", later, "crm")
    batch.settle()
    monkeypatch.setenv("CRM", "up")

    replay(spec, "replay", frozen)

    assert waiting(stores) == {later}
    assert stores.ledger.entries(failed)[failed[0]]["lake"].deliveries == 1
    assert run_audit(stores, FLOWS).balanced


def test_a_replay_that_still_fails_is_retried_and_then_dead_lettered(
    spec: PipelineConfig, failed: list[str], stores: PipelineStores
) -> None:
    for _ in range(2):
        with pytest.raises(AirflowException, match="3 messages still fail"):
            replay(spec, "replay", failed)

    SettleReplayOperator(task_id="settle", pipeline=spec).execute(context("replay"))

    assert (stores.dead_letters.count()["available"], run_audit(stores, FLOWS).balanced) == (3, True)


def test_clearing_the_replay_takes_up_the_dead_letters(
    spec: PipelineConfig, failed: list[str], stores: PipelineStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    test_a_replay_that_still_fails_is_retried_and_then_dead_lettered(spec, failed, stores)
    monkeypatch.setenv("CRM", "up")

    replay(spec, "replay", failed)

    assert stores.dead_letters.count()["available"] == 0
    assert run_audit(stores, FLOWS).total.delivered == 3


def test_a_rate_goes_to_spark_where_handlers_take_dataframes(
    spec: PipelineConfig, failed: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "from homing import HandlerChain, destination\n@destination(dataframe=True)\ndef lake(messages): ...\n"
    (tmp_path / "frames_chain.py").write_text(f"{code}chain = HandlerChain('frames', destinations_flow=[lake])\n")
    binary = tmp_path / "spark-submit"
    binary.write_text('#!/bin/sh\necho "$@" > "$0.called"\n')
    binary.chmod(0o755)
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", '{"conn_type": "spark", "host": "local[1]"}')
    frames = replace(spec, chain="frames_chain:chain")

    ReplayOperator(task_id="r", pipeline=frames, ids=failed, rate="2.5", spark_binary=str(binary)).execute(context())

    assert (tmp_path / "spark-submit.called").read_text().rstrip().endswith("--rate 2.5")


@pytest.mark.parametrize(
    ("retry", "hold"),
    [
        (RetryPolicy(0, 3600), 600),
        (RetryPolicy(2, 3600), 4200),
        # Airflow itself spreads growing delays up to twice their length.
        (RetryPolicy.exponential(3, 100, max_interval=1000, jitter=0.2), 1400),
    ],
)
def test_a_batch_is_held_until_its_next_try(
    spec: PipelineConfig, failed: list[str], stores: PipelineStores, retry: RetryPolicy, hold: float
) -> None:
    patient = replace(spec, retry=retry)
    with pytest.raises(AirflowException, match="still fail"):
        ReplayOperator(task_id="replay", pipeline=patient, ids=failed, rate=1000).execute(context("replay"))

    with stores.store._database._engine.begin() as connection:
        ends = connection.execute(sa.text("select min(time_next) from homing_orders_failures")).scalar_one()
    assert hold - 60 < ends / 1e9 - time.time() <= hold
    assert patient.hold == hold


@pytest.mark.parametrize("rate", ["nan", float("inf"), 1e-320, -1, "1; drop", [1], "9" * 5_000])
def test_a_rate_that_no_clock_can_keep_is_refused_before_a_message_is_held(
    spec: PipelineConfig, failed: list[str], stores: PipelineStores, rate: Any
) -> None:
    with pytest.raises(AirflowFailException, match="rate must be >= 1e-05 messages per second"):
        ReplayOperator(task_id="replay", pipeline=spec, ids=failed, rate=rate).execute(context("replay"))

    assert set(stores.failures.count().items()) >= {("available", 3)}


def test_only_a_large_replay_needs_an_approval_and_is_described_as_the_stores_have_it(
    spec: PipelineConfig, failed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(
        "airflow.providers.standard.operators.hitl.ApprovalOperator.execute",
        lambda self, context: asked.append((self.subject, self.body)),
    )
    with DAG("orders_replay", schedule=None):
        approve = ApproveReplayOperator(
            task_id="approve", pipeline=replace(spec, approve_replays_above=2), ids=failed[:2]
        )
    task = FakeTask()
    task.xcoms["plan"] = ["nothing of importance"]  # whoever may write XComs may say so

    approve.execute(task.context)
    assert asked == []
    approve.ids = failed
    approve.execute(task.context)

    plan = "- crm: ValueError: 3 messages, tries crm again, skips lake where that is done"
    assert asked == [("Replay 3 messages of orders?", plan)]


@pytest.fixture
def asking(spec: PipelineConfig, failed: list[str], stores: PipelineStores) -> ApproveReplayOperator:
    """A replay of what nobody has replayed for long, which waits for an answer."""
    with stores.store._database._engine.begin() as connection:
        connection.execute(sa.text("update homing_orders_failures set time_next = 1"))
    with DAG("orders_replay", schedule=None):
        selected = SelectOperator(task_id="select", pipeline=spec)
        approve = ApproveReplayOperator(task_id="approve", pipeline=replace(spec, approve_replays_above=2), ids=failed)
        selected >> approve
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("airflow.providers.standard.operators.hitl.ApprovalOperator.execute", lambda *_: None)
        approve.execute(context("asking"))
    return approve


def answer(approve: ApproveReplayOperator, option: str) -> None:
    user = {"id": "1", "name": "ann"}
    event = {"chosen_options": [option], "params_input": {}, "responded_at": datetime.now(timezone.utc)}
    approve.execute_complete({**context("asking"), "task": approve}, {**event, "responded_by_user": user})


def test_what_waits_for_an_answer_is_not_replayed_meanwhile_but_after_it(
    asking: ApproveReplayOperator,
    spec: PipelineConfig,
    failed: list[str],
    stores: PipelineStores,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    SettleOperator(task_id="settle", pipeline=spec, replay_dag_id="orders_replay").execute(context("another"))
    monkeypatch.setenv("CRM", "up")

    answer(asking, "Approve")
    replay(spec, "asking", failed)

    assert run_audit(stores, FLOWS).total.delivered == 3


def test_what_was_refused_is_left_to_people(
    asking: ApproveReplayOperator,
    spec: PipelineConfig,
    failed: list[str],
    stores: PipelineStores,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answer(asking, "Reject")

    assert run_audit(stores, FLOWS).total.dead_lettered == 3
    SettleOperator(task_id="settle", pipeline=spec, replay_dag_id="orders_replay").execute(context("another"))
    monkeypatch.setenv("CRM", "up")
    replay(spec, "by hand", select(spec, error_group="crm: ValueError"))
    assert run_audit(stores, FLOWS).total.delivered == 3


def test_settling_often_asks_for_one_replay_of_what_was_left_over(
    spec: PipelineConfig, failed: list[str], stores: PipelineStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time", lambda: 1_800_000_000.0)
    with stores.store._database._engine.begin() as connection:
        connection.execute(sa.text("update homing_orders_failures set time_next = 1"))
    runs = set()
    for run in ("one", "two"):
        with pytest.raises(DagRunTriggerException) as asked:
            SettleOperator(task_id="settle", pipeline=spec, replay_dag_id="orders_replay").execute(context(run))
        runs.add(asked.value.dag_run_id)
        assert sorted(asked.value.conf["ids"]) == names(stores, failed)

    assert runs == {"left_over.6000000"}


def test_settling_asks_for_one_replay_of_what_failed(spec: PipelineConfig, pipeline: Pipeline) -> None:
    _, (message_id,) = pipeline.claimed("orders/run", 1)
    pipeline.failed("orders/run", message_id, "crm")

    for _ in range(2):
        with pytest.raises(DagRunTriggerException) as asked:
            SettleOperator(task_id="settle", pipeline=spec, replay_dag_id="orders_replay").execute(context())

        assert (asked.value.trigger_dag_id, asked.value.dag_run_id) == ("orders_replay", "run")
        assert asked.value.conf == {"batch": "orders/run", "ids": []}
        assert asked.value.skip_when_already_exists
        assert asked.value.note.startswith("Replays 1 messages of batch orders/run: ")


def test_no_url_of_a_server_is_among_what_airflow_renders(spec: PipelineConfig) -> None:
    secret = replace(spec, store="postgresql://u:s3cret@host/db?store=orders")
    operator = ReplayOperator(task_id="replay", pipeline=secret, ids=["a"])

    shown = {name: getattr(operator, name, None) for name in operator.template_fields}

    assert "s3cret" not in str(shown)
    assert "postgresql" not in str(shown)
