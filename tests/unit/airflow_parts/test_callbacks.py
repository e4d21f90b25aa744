"""The failure callback: the fast path to the dead-letter store, which must not mistake a clear for a failure."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from airflow.serialization.serialized_objects import DagSerialization

from homing.airflow import PipelineConfig, dead_letter_callback, delivery_dag
from homing.airflow.retry_policy import TaskRetryPolicy
from homing.delivery import PipelineStores
from homing.retry import RetryPolicy
from tests.unit.airflow_parts.conftest import FakeTask
from tests.unit.delivery.conftest import Pipeline, waiting


def failed_replay(spec: PipelineConfig, pipeline: Pipeline, failed: list[str], state: str | None) -> dict[str, Any]:
    """The context of a replay whose last try ended, with what Airflow says of the task by now."""
    pipeline.batch("orders/replay").reclaim(failed)
    for message_id in failed:
        pipeline.failed("orders/replay", message_id, "crm", batch_id="first")
    task = FakeTask("replay")
    task.get_task_states = lambda dag_id, run_ids, task_ids: {"replay": {"task": state}}  # type: ignore[attr-defined]
    return {**task.context, "task": SimpleNamespace(pipeline=spec), "exception": RuntimeError("still failing")}


@pytest.mark.parametrize("state", ["running", "failed"])
def test_what_failed_is_dead_lettered_however_often_it_is_called(
    spec: PipelineConfig, pipeline: Pipeline, stores: PipelineStores, failed: list[str], state: str
) -> None:
    context = failed_replay(spec, pipeline, failed, state)

    dead_letter_callback(context)
    dead_letter_callback(context)

    assert stores.dead_letters.count()["available"] == 3
    assert waiting(stores) == set()


@pytest.mark.parametrize("state", [None, "restarting", "queued", "scheduled", "up_for_retry", "success", "deferred"])
def test_a_try_that_somebody_cleared_dead_letters_nothing(
    spec: PipelineConfig, pipeline: Pipeline, stores: PipelineStores, failed: list[str], state: str | None
) -> None:
    dead_letter_callback(failed_replay(spec, pipeline, failed, state))

    assert stores.dead_letters.count()["available"] == 0
    assert waiting(stores) == set(failed)


def test_a_late_call_of_the_dag_processor_leaves_a_newer_try_alone(
    spec: PipelineConfig, pipeline: Pipeline, stores: PipelineStores, failed: list[str]
) -> None:
    context = failed_replay(spec, pipeline, failed, "running")
    del context["exception"]

    dead_letter_callback(context)

    assert stores.dead_letters.count()["available"] == 0


def test_a_try_that_a_killed_scheduler_left_behind_leaves_the_newer_one_alone(
    spec: PipelineConfig, pipeline: Pipeline, stores: PipelineStores, failed: list[str]
) -> None:
    context = failed_replay(spec, pipeline, failed, "running")
    newer = stores.ledger.open_step("orders/replay", "replay", 60)

    dead_letter_callback(context)

    assert stores.dead_letters.count()["available"] == 0
    stores.ledger.renew_step(newer, 60)
    stores.ledger.close_step(newer)
    dead_letter_callback(context)
    assert stores.dead_letters.count()["available"] == 3


def test_an_outage_dead_letters_nothing(
    spec: PipelineConfig, pipeline: Pipeline, stores: PipelineStores, failed: list[str]
) -> None:
    context = failed_replay(spec, pipeline, [], "failed")
    pipeline.batch("orders/replay").reclaim(failed)  # held, and then Spark could not run

    dead_letter_callback(context)

    assert stores.dead_letters.count()["available"] == 0
    assert stores.failures.count()["available"] == 3


def test_growing_delays_begin_anew_after_a_clear() -> None:
    policy = TaskRetryPolicy(RetryPolicy(3, 2.0, multiplier=3.0, max_interval=15.0))
    task = {"task": SimpleNamespace(retries=3), "run_id": "r"}

    def delays(first: int, max_tries: int) -> list[float]:
        tries = range(first, first + 3)
        decided = [policy.evaluate(ValueError(), number, max_tries, task) for number in tries]
        return [each.retry_delay.total_seconds() for each in decided if each.retry_delay]

    assert delays(1, max_tries=3) == [2, 6, 15]
    assert delays(5, max_tries=7) == [2, 6, 15]  # cleared after its fourth and last try


def test_the_tasks_of_a_pipeline_with_growing_delays_survive_serialization(chain: str, urls: tuple[str, str]) -> None:
    policy = RetryPolicy.exponential(2, 5)

    for dag in delivery_dag("grows", chain=chain, store=urls[0], dead_letter_store=urls[1], retry=policy):
        again = DagSerialization.from_dict(DagSerialization.to_dict(dag))
        assert set(again.task_dict) == set(dag.task_ids)
    assert isinstance(dag.get_task("replay").retry_policy, TaskRetryPolicy)
