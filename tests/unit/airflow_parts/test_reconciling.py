"""The reconciler sweeps what the other layers missed, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from airflow.sdk.exceptions import DagRunTriggerException

from homing.airflow import ReconcileOperator, reconcile_dag
from homing.delivery import PipelineStores, keep_books
from homing.errors import ConfigurationError
from tests.unit.airflow_parts.conftest import FakeTask
from tests.unit.delivery.conftest import FLOWS, Pipeline


def reconcile(urls: tuple[str, str], after: float = 300.0) -> None:
    operator = ReconcileOperator(
        task_id="orders", name="orders", store=urls[0], dead_letter_store=urls[1], flows=FLOWS, after=after
    )
    operator.execute(FakeTask("tick", dag_id="homing_reconcile").context)


def let_lease_end(stores: PipelineStores, table: str) -> None:
    with stores.store._database._engine.begin() as connection:
        connection.execute(sa.text(f"update {table} set time_next = 1 where time_next > 1"))  # noqa: S608


def test_a_batch_whose_run_is_gone_is_settled_once_its_lease_has_ended(
    urls: tuple[str, str], stores: PipelineStores, pipeline: Pipeline
) -> None:
    _, (done, failed, untouched) = pipeline.claimed("gone", 1, 2, 3)
    pipeline.delivered("gone", done, *FLOWS)
    pipeline.failed("gone", failed, "crm")
    reconcile(urls)
    assert stores.store.count()["leased"] == 3
    let_lease_end(stores, "homing_orders")

    reconcile(urls)

    assert stores.store.present([done, failed, untouched]) == {untouched}
    assert stores.failures.present([failed]) == {failed}
    assert keep_books(stores, FLOWS).balanced


def test_a_failure_whose_replay_never_came_is_replayed(
    urls: tuple[str, str], stores: PipelineStores, failed: list[str]
) -> None:
    reconcile(urls)
    let_lease_end(stores, "homing_orders_failures")

    with pytest.raises(DagRunTriggerException) as asked:
        reconcile(urls)

    assert (asked.value.trigger_dag_id, asked.value.dag_run_id) == ("orders_replay", "reconcile.tick")
    assert sorted(asked.value.conf["ids"]) == sorted(failed)


def test_what_the_store_gave_up_is_dead_lettered_without_waiting_for_a_claim(
    urls: tuple[str, str], stores: PipelineStores
) -> None:
    stores.store.store("poison", id="p")
    stores.store.dead_letter(stores.store.claim(1)[0], reason="crashed")

    reconcile(urls)

    assert stores.dead_letters.count()["available"] == 1
    assert keep_books(stores, FLOWS).total.dead_lettered == 1


@pytest.mark.parametrize("pipeline", [{}, {"name": "x", "store": "a", "dead_letter_store": "b", "destinations": []}])
def test_a_pipeline_that_is_not_described_is_refused(pipeline: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="destinations"):
        reconcile_dag([pipeline])
