"""The reconciler sweeps what the other layers missed, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk.exceptions import DagRunTriggerException

from homing.airflow import ReconcileOperator, reconcile_dag
from homing.airflow.pipeline_config import PipelineAddress
from homing.delivery import Batch, PipelineStores, Settlement, run_audit
from homing.errors import ConfigurationError, StoreError
from tests.unit.airflow_parts.conftest import FakeTask
from tests.unit.delivery.conftest import FLOWS, Pipeline, names, waiting

pytestmark = pytest.mark.usefixtures("chain")


def reconcile(urls: tuple[str, str], chain: str = "parts_chain:chain") -> None:
    operator = ReconcileOperator(
        task_id="orders",
        pipeline=PipelineAddress("orders", chain=chain, store=urls[0], dead_letter_store=urls[1]),
        after=300.0,
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

    assert stores.store.view.present([done, failed, untouched]) == {untouched}
    assert waiting(stores) == {failed}
    assert run_audit(stores, FLOWS).balanced


def test_a_failure_whose_replay_never_came_is_replayed(
    urls: tuple[str, str], stores: PipelineStores, failed: list[str]
) -> None:
    reconcile(urls)
    let_lease_end(stores, "homing_orders_failures")

    with pytest.raises(DagRunTriggerException) as asked:
        reconcile(urls)

    assert (asked.value.trigger_dag_id, asked.value.dag_run_id) == ("orders_replay", "reconcile.tick")
    assert sorted(asked.value.conf["ids"]) == names(stores, failed)


def test_what_the_store_gave_up_is_dead_lettered_without_waiting_for_a_claim(
    urls: tuple[str, str], stores: PipelineStores
) -> None:
    stores.store.store("poison", id="p")
    stores.store.dead_letter(stores.store.claim(1)[0], reason="crashed")

    reconcile(urls)

    assert stores.dead_letters.count()["available"] == 1
    assert run_audit(stores, FLOWS).total.dead_lettered == 1


def test_a_chain_that_cannot_be_imported_proves_nothing_complete_and_strands_nothing(
    urls: tuple[str, str], stores: PipelineStores, pipeline: Pipeline
) -> None:
    stores.store.store("poison", id="p")
    stores.store.dead_letter(stores.store.claim(1)[0], reason="crashed")
    done, failed = stores.store.store_many([1, 2])
    stores.store.lease_batch(2, batch_id="gone", lease=60)
    pipeline.delivered("gone", done, *FLOWS)
    pipeline.failed("gone", failed, "crm")
    let_lease_end(stores, "homing_orders")

    reconcile(urls, chain="no_such_module:chain")

    assert (stores.store.count()["available"], stores.store.count()["dead"]) == (1, 1)
    assert stores.store.view.present([done]) == {done}
    assert waiting(stores) == {failed}
    assert run_audit(stores, FLOWS).balanced


def test_one_batch_that_cannot_be_settled_holds_up_nothing_else(
    urls: tuple[str, str],
    stores: PipelineStores,
    pipeline: Pipeline,
    failed: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pipeline.claimed("bad", 1)
    pipeline.claimed("good", 2)
    for table in ("homing_orders", "homing_orders_failures"):
        let_lease_end(stores, table)
    settle = Batch.settle

    def fail_for_one(batch: Batch) -> Settlement:
        if batch.run_id == "bad":
            raise StoreError("broken")
        return settle(batch)

    def broken(*_: object) -> None:
        raise StoreError("broken too")

    monkeypatch.setattr(Batch, "settle", fail_for_one)
    monkeypatch.setattr(Batch, "move_dead", broken)
    monkeypatch.setattr("homing.airflow.dags.reconcile_dag.read_failures", broken)

    with pytest.raises(DagRunTriggerException) as asked:
        reconcile(urls)

    assert sorted(asked.value.conf["ids"]) == names(stores, failed)
    assert stores.store.view.expired_batches(0) == ["bad"]


def test_trouble_is_told_once_everything_else_is_done(
    urls: tuple[str, str], stores: PipelineStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise StoreError("broken")

    monkeypatch.setattr(Batch, "move_dead", broken)

    with pytest.raises(StoreError, match="broken"):
        reconcile(urls)


@pytest.mark.parametrize("pipeline", [{}, {"name": "x", "store": "a", "dead_letter_store": "b", "chain": "c"}])
def test_a_pipeline_that_is_not_described_is_refused(pipeline: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="chain"):
        reconcile_dag([pipeline])


def test_the_safety_net_of_the_worked_example_sweeps_its_pipeline(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = str(Path(__file__).parents[3] / "dags")
    monkeypatch.syspath_prepend(folder)
    bag = DagBag(folder)

    pipeline = bag.dags["orders"].get_task("settle").pipeline
    swept = bag.dags["homing_reconcile"].get_task("orders")

    for name in ("chain", "store", "dead_letter_store"):
        assert getattr(swept.pipeline, name) == getattr(pipeline, name)
    assert bag.dags["orders"].get_task("settle").replay_dag_id == swept.pipeline.replay_dag_id
