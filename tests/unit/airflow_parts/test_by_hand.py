"""Replays by hand: written down, counted together, and not approved by who asked for them."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowException, AirflowFailException, DagRunTriggerException

from homing.airflow import PipelineConfig, ReplayOperator, SelectOperator, SettleOperator, StoreSensor
from homing.airflow.operators.select import ApproveReplayOperator
from homing.airflow.operators.spark import ProcessOperator
from homing.delivery import Batch, PipelineStores
from homing.delivery.operations import CLEAR, REPLAY, ApprovalRule, read_operations, rule_of
from tests.unit.airflow_parts.conftest import FakeTask
from tests.unit.delivery.conftest import Pipeline, names


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What Airflow was told to ask."""
    questions: list[str] = []
    monkeypatch.setattr(
        "airflow.providers.standard.operators.hitl.ApprovalOperator.execute",
        lambda self, context: questions.append(self.subject),
    )
    return questions


@pytest.fixture
def held(spec: PipelineConfig) -> PipelineConfig:
    """A pipeline that lets two messages a day pass unasked."""
    return replace(spec, approve_replays_above=2)


def run(run_id: str, user: str | None = "ann", *, by_hand: bool = True, clears: int = 0, **params: Any) -> Any:
    task = FakeTask(run_id, "orders_replay", **params)
    dag_run = task.context["dag_run"]
    dag_run.run_type = "manual" if by_hand else "operator_triggered"
    dag_run.triggering_user_name, dag_run.clear_number = user, clears
    task.try_number, task.max_tries = 1, 0  # the last try
    return task.context


def approval(spec: PipelineConfig, ids: list[str]) -> ApproveReplayOperator:
    with DAG("orders_replay", schedule=None):
        selected = SelectOperator(task_id="select", pipeline=spec)
        approve = ApproveReplayOperator(task_id="approve", pipeline=spec, ids=ids)
        selected >> approve
    return approve


def answer(spec: PipelineConfig, ids: list[str], context: Any, option: str, user: dict[str, str] | None) -> None:
    event = {"chosen_options": [option], "params_input": {}, "responded_at": datetime.now(timezone.utc)}
    approve = approval(spec, ids)
    approve.execute_complete({**context, "task": approve}, {**event, "responded_by_user": user})


def replay(spec: PipelineConfig, ids: list[str], context: Any) -> None:
    ReplayOperator(task_id="replay", pipeline=spec, ids=ids, rate=100).execute(context)


def test_a_replay_by_hand_is_an_operation(
    spec: PipelineConfig, stores: PipelineStores, failed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CRM", "up")
    ids, context = names(stores, failed), run("r1", destination="crm", reason="the CRM is back")

    replay(spec, ids, context)

    (one,) = read_operations(stores.store)
    assert (one.what, one.who, one.via, one.why, one.messages) == (REPLAY, "ann", "airflow", "the CRM is back", 3)
    assert (one.state, one.outcome) == ("done", {"replayed": 3, "left": 0})
    assert one.selection == {"destination": "crm", "ids": ids}


def test_a_replay_that_still_fails_has_failed(spec: PipelineConfig, stores: PipelineStores, failed: list[str]) -> None:
    with pytest.raises(AirflowException, match="still fail"):
        replay(spec, names(stores, failed), run("r1"))

    assert [(one.state, one.outcome["left"]) for one in read_operations(stores.store)] == [("failed", 3)]


def test_what_the_pipeline_replays_itself_is_none(
    spec: PipelineConfig, stores: PipelineStores, failed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CRM", "up")

    replay(spec, names(stores, failed), run("r1", by_hand=False))

    assert read_operations(stores.store) == []


def test_a_clear_is_an_operation(spec: PipelineConfig, stores: PipelineStores, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ProcessOperator, "_run_job", lambda *_: None)
    operator = ProcessOperator(task_id="process", pipeline=spec)
    for clears in (0, 1, 1, 2):
        operator.execute(run("r1", by_hand=False, clears=clears))

    told = read_operations(stores.store)
    assert [(one.what, one.via, one.selection) for one in told] == [
        (CLEAR, "airflow", {"batch": "orders_replay/r1"})
    ] * 2


def test_replays_by_hand_are_counted_together(held: PipelineConfig, asked: list[str]) -> None:
    approval(held, ["a"]).execute(run("r1"))
    approval(held, ["b"]).execute(run("r2", "bob"))
    assert asked == []
    approval(held, ["c"]).execute(run("r3"))

    assert asked == ["Replay 1 messages of orders?"]


def test_what_is_older_than_the_window_does_not_count(held: PipelineConfig, asked: list[str]) -> None:
    brief = replace(held, approval_window=1e-6)
    for number in range(5):
        approval(brief, [f"a{number}", f"b{number}"]).execute(run(f"r{number}"))

    assert asked == []


def test_a_task_that_is_tried_again_counts_once(held: PipelineConfig, asked: list[str]) -> None:
    for _ in range(3):
        approval(held, ["a", "b"]).execute(run("r1"))

    assert asked == []


def test_what_the_pipeline_replays_itself_does_not_count(held: PipelineConfig, asked: list[str]) -> None:
    for number in range(3):
        approval(held, [f"a{number}", f"b{number}"]).execute(run(f"r{number}", by_hand=False))
    approval(held, ["x", "y"]).execute(run("by hand"))

    assert asked == []


def test_what_is_slipped_into_a_run_of_the_pipeline_that_is_cleared_counts(
    held: PipelineConfig, asked: list[str]
) -> None:
    approval(held, ["a", "b"]).execute(run("r1", by_hand=False))
    approval(held, ["a", "b"]).execute(run("r1", by_hand=False, clears=1))
    approval(held, ["x", "y"]).execute(run("r1", by_hand=False, clears=2))
    assert asked == []

    approval(held, ["z"]).execute(run("r1", by_hand=False, clears=3))

    assert asked == ["Replay 1 messages of orders?"]


def test_a_run_of_the_pipeline_replays_only_what_it_began_with(
    held: PipelineConfig, stores: PipelineStores, failed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CRM", "up")
    ids, context = names(stores, failed), run("r1", by_hand=False)
    approval(held, ids[:2]).execute(context)

    with pytest.raises(AirflowFailException, match="not approved"):
        replay(held, ids[2:], context)
    replay(held, ids[:2], context)

    assert stores.failures.count()["available"] == 1


def test_what_was_approved_leaves_room_for_others(held: PipelineConfig, asked: list[str]) -> None:
    ids, context = ["a", "b", "c"], run("r1")
    approval(held, ids).execute(context)
    answer(held, ids, context, "Approve", {"id": "2", "name": "bob"})
    approval(held, ["d", "e"]).execute(run("r2"))

    assert asked == ["Replay 3 messages of orders?"]


@pytest.mark.parametrize(
    ("asker", "responder"),
    [
        ("ann", {"id": "1", "name": "ann"}),
        ("ann", {"id": "ann", "name": "Ann Other"}),
        ("ann", None),
        ("ann", {}),
        (None, {"id": "2", "name": "bob"}),
    ],
)
def test_who_asked_cannot_approve(
    held: PipelineConfig, stores: PipelineStores, failed: list[str], asker: str | None, responder: dict[str, str] | None
) -> None:
    ids, context = names(stores, failed), run("r1", asker)
    approval(held, ids).execute(context)

    with pytest.raises(AirflowException, match="does not count"):
        answer(held, ids, context, "Approve", responder)

    assert "does not count" in context["ti"].xcoms["homing_note"]
    with pytest.raises(AirflowFailException, match="not approved"):
        replay(held, ids, context)


def test_another_approves_and_is_written_down(
    held: PipelineConfig, stores: PipelineStores, failed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CRM", "up")
    ids, context = names(stores, failed), run("r1")
    approval(held, ids).execute(context)
    answer(held, ids, context, "Approve", {"id": "2", "name": "bob"})

    replay(held, ids, context)

    (one,) = [each for each in read_operations(stores.store) if each.what == REPLAY]
    assert [(event.event, event.who) for event in one.events] == [
        ("asked", "ann"),
        ("approved", "bob"),
        ("done", "ann"),
    ]
    assert one.who == "ann"


def test_who_asked_may_reject(held: PipelineConfig, stores: PipelineStores, failed: list[str]) -> None:
    ids, context = names(stores, failed), run("r1")
    approval(held, ids).execute(context)

    answer(held, ids, context, "Reject", {"id": "1", "name": "ann"})

    assert stores.dead_letters.count()["available"] == 3


def test_what_the_pipeline_asked_for_itself_is_approved_by_anybody(
    held: PipelineConfig, stores: PipelineStores, failed: list[str], asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CRM", "up")
    # A run that a task triggered inherits the user of the run before it.
    ids, context = names(stores, failed), run("r1", "ann", by_hand=False)
    approval(held, ids).execute(context)
    with pytest.raises(AirflowFailException, match="not approved"):
        replay(held, ids, context)

    answer(held, ids, context, "Approve", {"id": "1", "name": "ann"})
    replay(held, ids, context)

    assert asked == ["Replay 3 messages of orders?"]
    assert stores.failures.count()["available"] == 0


def test_what_the_pipeline_asked_for_itself_is_approved_by_anybody_also_when_it_is_cleared(
    held: PipelineConfig, stores: PipelineStores, failed: list[str], asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CRM", "up")
    ids = names(stores, failed)
    approval(held, ids).execute(run("r1", by_hand=False))
    cleared = run("r1", by_hand=False, clears=1)
    approval(held, ids).execute(cleared)
    assert asked == ["Replay 3 messages of orders?"] * 2

    answer(held, ids, cleared, "Approve", {"id": "1", "name": "ann"})
    replay(held, ids, cleared)

    assert stores.failures.count()["available"] == 0


def test_who_slips_messages_into_a_cleared_run_cannot_approve_them(
    held: PipelineConfig, stores: PipelineStores, failed: list[str], asked: list[str]
) -> None:
    """Airflow does not tell who cleared a run: it may be the very user who approves."""
    ids = names(stores, failed)
    approval(held, ids[:1]).execute(run("r1", by_hand=False))
    cleared = run("r1", by_hand=False, clears=1)
    approval(held, ids).execute(cleared)
    assert asked == ["Replay 3 messages of orders?"]

    with pytest.raises(AirflowException, match="not known who cleared it"):
        answer(held, ids, cleared, "Approve", {"id": "1", "name": "ann"})

    with pytest.raises(AirflowFailException, match="not approved"):
        replay(held, ids, cleared)


def test_messages_that_were_slipped_in_are_not_replayed(
    held: PipelineConfig, stores: PipelineStores, failed: list[str]
) -> None:
    ids, context = names(stores, failed), run("r1")
    approval(held, ids[:1]).execute(context)

    with pytest.raises(AirflowFailException, match="not approved"):
        replay(held, ids, context)


@pytest.fixture
def refused(pipeline: Pipeline) -> list[str]:
    """The names of three messages that failed in the run `run` of the DAG `orders`."""
    batch, ids = pipeline.claimed("orders/run", 1, 2, 3)
    for message_id in ids:
        pipeline.failed("orders/run", message_id, "crm")
    batch.settle()
    return names(pipeline.stores, ids)


def clear(spec: PipelineConfig, clears: int = 1) -> int:
    """That run is cleared; how many messages it holds then."""
    task = FakeTask("run", "orders")
    task.context["dag_run"].clear_number = clears
    claimed: dict[str, int] = StoreSensor(task_id="listen", pipeline=spec).execute(task.context)
    return claimed["messages"]


@pytest.mark.parametrize("dead", [False, True])
def test_a_cleared_run_replays_no_more_than_may_be_replayed_unasked(
    held: PipelineConfig, stores: PipelineStores, refused: list[str], dead: bool
) -> None:
    if dead:
        Batch(stores, "refused", ["lake", "crm"]).reject(refused)

    with pytest.raises(AirflowFailException, match=r"3 messages failed in batch orders/run, .* need an approval"):
        clear(held)

    place = stores.dead_letters if dead else stores.failures
    assert place.count()["available"] == 3
    assert read_operations(stores.store) == []


def test_what_a_cleared_run_replays_counts_once_for_each_clear(
    held: PipelineConfig, stores: PipelineStores, refused: list[str], asked: list[str]
) -> None:
    roomy = replace(held, approve_replays_above=5)
    assert [clear(roomy), clear(roomy)] == [3, 3]  # its task is tried again
    Batch(stores, "orders/run", ["lake", "crm"]).settle()

    with pytest.raises(AirflowFailException, match="need an approval"):
        clear(roomy, clears=2)
    approval(roomy, refused).execute(run("r1"))

    assert asked == ["Replay 3 messages of orders?"]
    first, *_ = read_operations(stores.store)
    assert (first.what, first.messages) == (REPLAY, 3)


def test_a_run_that_is_cleared_before_anything_failed_goes_on(
    held: PipelineConfig, stores: PipelineStores, pipeline: Pipeline
) -> None:
    pipeline.claimed("orders/run", 1, 2, 3)

    assert clear(held) == 3
    assert read_operations(stores.store) == []


def test_the_command_line_learns_the_rule_before_anything_fails(
    held: PipelineConfig, stores: PipelineStores, pipeline: Pipeline
) -> None:
    _, (message_id,) = pipeline.claimed("orders/r1", 1)
    pipeline.failed("orders/r1", message_id, "crm")

    with pytest.raises(DagRunTriggerException):
        SettleOperator(task_id="settle", pipeline=held, replay_dag_id="orders_replay").execute(FakeTask("r1").context)

    assert rule_of(stores.store) == ApprovalRule(2, 86_400.0, "orders_replay")


def test_a_rule_is_written_down_when_it_changes(
    held: PipelineConfig, spec: PipelineConfig, stores: PipelineStores, failed: list[str]
) -> None:
    for pipeline in (held, held, replace(held, approve_replays_above=5), spec, spec):
        SelectOperator(task_id="select", pipeline=pipeline).execute(run("r1", by_hand=False, batch="first"))

    said = [one.outcome.get("above") for one in read_operations(stores.store) if one.what == "rule"]
    assert said == [2, 5, None]
    assert rule_of(stores.store) is None
