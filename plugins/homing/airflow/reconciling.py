"""reconcile_dag: sweeps up what the pipelines' own tasks could not.

A pipeline settles its own runs. What is left then: a run whose DAG file was broken half-way, whose claim was killed, or
whose replay was never triggered. This DAG lies in a file of its own, so that a broken one does not take it along.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, BaseOperator

from homing.airflow import metrics
from homing.airflow.dag import START
from homing.airflow.hook import find_url
from homing.airflow.settling import trigger_replay
from homing.airflow.telling import note
from homing.delivery import Batch, Settlement, open_pipeline_stores
from homing.delivery.batch import STRANDED_AFTER
from homing.delivery.failures import read_failures
from homing.errors import ConfigurationError


class ReconcileOperator(BaseOperator):
    """Settles the batches whose lease ran out and that nobody has claimed since, dead-letters what its store gave up,
    and has stranded failures replayed. Idempotent; harmless beside a pipeline that runs."""

    def __init__(
        self, *, name: str, store: str, dead_letter_store: str, flows: Sequence[str], after: float, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.pipeline_name = name
        self.store = store
        self.dead_letter_store = dead_letter_store
        self.flows = tuple(flows)
        self.after = after

    def execute(self, context: Any) -> None:
        with open_pipeline_stores(find_url(self.store), find_url(self.dead_letter_store)) as stores:
            for batch_id in stores.store.expired_batches(self.after):
                settlement = self._batch(stores, batch_id).settle()
                if settlement != Settlement():
                    self.log.warning("batch %s was left behind: %s", batch_id, settlement)
                    metrics.settled(settlement, self.pipeline_name)
            sweep = self._batch(stores, f"{context['dag'].dag_id}/{context['run_id']}")
            dead = sweep.move_dead()
            metrics.count("dead_lettered", dead, pipeline=self.pipeline_name)
            metrics.oldest_age(stores.store)
            self._show_lag(stores)
            stranded = stores.failures.overdue(self.after)
        note(self, context, f"{self.pipeline_name}: {len(stranded)} stranded failures, {dead} given up by the store.")
        if stranded:
            why = f"Replays {len(stranded)} messages whose replay never came, found by {context['dag'].dag_id}."
            replay_run = f"reconcile.{context['run_id']}"
            trigger_replay(f"{self.pipeline_name}_replay", replay_run, {"ids": stranded}, why)

    def _batch(self, stores: Any, batch_id: str) -> Batch:
        return Batch(stores, batch_id, self.flows, chain=self.pipeline_name)

    def _show_lag(self, stores: Any) -> None:
        waiting = [failure for failure in read_failures(stores) if not failure.dead]
        for flow in self.flows:
            metrics.lag(self.pipeline_name, flow, sum(flow not in failure.done for failure in waiting))


def reconcile_dag(
    pipelines: Sequence[dict[str, Any]],
    *,
    dag_id: str = "homing_reconcile",
    schedule: Any = timedelta(minutes=5),
    after: float = STRANDED_AFTER,
    **dag_arguments: Any,
) -> DAG:
    """Makes the DAG that sweeps these pipelines every `schedule`, for what was left alone for `after` seconds.

    A pipeline is {"name", "store", "dead_letter_store", "destinations"}, as in its `delivery_dag`; `destinations` are
    the names of its chain's destination flows, given here so that the chain need not be importable.
    """
    common = {"catchup": False, "start_date": START, "tags": ["homing"], "max_active_runs": 1, **dag_arguments}
    with DAG(dag_id, schedule=schedule, **common) as dag:
        for pipeline in pipelines:
            _check(pipeline)
            ReconcileOperator(
                task_id=pipeline["name"],
                name=pipeline["name"],
                store=pipeline["store"],
                dead_letter_store=pipeline["dead_letter_store"],
                flows=pipeline["destinations"],
                after=after,
                retries=2,
                retry_delay=timedelta(seconds=30),
            )
    return dag


def _check(pipeline: dict[str, Any]) -> None:
    wanted = {"name", "store", "dead_letter_store", "destinations"}
    if pipeline.keys() != wanted or not pipeline["destinations"]:
        raise ConfigurationError(
            f"a pipeline to reconcile is a dict of {', '.join(sorted(wanted))}: {sorted(pipeline)}"
        )
