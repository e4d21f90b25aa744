"""reconcile_dag: sweeps up what the pipelines' own tasks could not.

A pipeline settles its own runs. What is left then: a run whose DAG file was broken half-way, whose claim was killed, or
whose replay was never triggered. This DAG lies in a file of its own, so that a broken one does not take it along.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, BaseOperator

from homing.airflow import metrics
from homing.airflow.dags.delivery_dag import START
from homing.airflow.operators.settle import trigger_replay
from homing.airflow.pipeline_config import PipelineAddress
from homing.airflow.task_notes import note
from homing.delivery import Batch, PipelineStores, Settlement, open_pipeline_stores
from homing.delivery.batch import STRANDED_AFTER
from homing.delivery.failures import read_failures
from homing.delivery.retention import tidy_up
from homing.errors import ChainImportError, ConfigurationError, HomingError
from homing.pipeline import load_chain


class ReconcileOperator(BaseOperator):
    """Settles the batches whose lease ran out and that were not claimed since, dead-letters what its store gave up,
    and has stranded failures replayed. Idempotent; harmless beside a pipeline that runs.

    What cannot be done delays nothing else, and fails the task at its end. While the chain cannot be imported, it
    is unknown when a message is complete: then all that did not fail is released.
    """

    def __init__(self, *, pipeline: PipelineAddress, after: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.pipeline = pipeline
        self.after = after

    def execute(self, context: Any) -> None:
        name, flows = self._chain()
        troubles: list[Exception] = []
        with open_pipeline_stores(*self.pipeline.urls()) as stores:
            for batch_id in stores.store.view.expired_batches(self.after):
                with self._keeping(troubles, f"batch {batch_id} was not settled"):
                    self._settle(Batch(stores, batch_id, flows, chain=name))
            dead = 0
            if flows:
                sweep = Batch(stores, f"{context['dag'].dag_id}/{context['run_id']}", flows, chain=name)
                with self._keeping(troubles, "what the store gave up was not dead-lettered"):
                    dead = sweep.move_dead()
            tidy_up(stores)
            stranded = stores.failures.view.overdue(self.after)
            self._measure(stores, flows, dead)
        found = f"{len(stranded)} stranded failures, {dead} given up by the store"
        note(self, context, f"{self.pipeline.name}: {found}, {len(troubles)} troubles.")
        if stranded:
            why = f"Replays {len(stranded)} messages whose replay never came, found by {context['dag'].dag_id}."
            replay_run = f"reconcile.{context['run_id']}"
            trigger_replay(self.pipeline.replay_dag_id, replay_run, {"ids": stranded}, why)
        if troubles:
            raise troubles[0]

    def _chain(self) -> tuple[str, tuple[str, ...]]:
        """The chain's name, and its destinations as they are now: with one too few, undelivered messages would seem
        complete."""
        try:
            chain = load_chain(self.pipeline.chain)
            return chain.name, tuple(flow.name for flow in chain.flows)
        except ChainImportError as error:
            self.log.warning("nothing is acknowledged or dead-lettered for now: %s", error)
            return "", ()

    @contextmanager
    def _keeping(self, troubles: list[Exception], what: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.log.exception(what)
            troubles.append(error)

    def _settle(self, batch: Batch) -> None:
        settlement = batch.settle()
        if settlement != Settlement():
            self.log.warning("batch %s was left behind: %s", batch.run_id, settlement)
            metrics.count_settlement(settlement, self.pipeline.name)

    def _measure(self, stores: PipelineStores, flows: Sequence[str], dead: int) -> None:
        metrics.count_messages("dead_lettered", dead, pipeline=self.pipeline.name)
        metrics.oldest_age(stores.store)
        with suppress(HomingError):
            waiting = [failure for failure in read_failures(stores) if not failure.dead]
            for flow in flows:
                metrics.lag(self.pipeline.name, flow, sum(flow not in failure.done for failure in waiting))


def reconcile_dag(
    pipelines: Sequence[dict[str, Any]],
    *,
    dag_id: str = "homing_reconcile",
    schedule: Any = timedelta(minutes=5),
    after: float = STRANDED_AFTER,
    **dag_arguments: Any,
) -> DAG:
    """Makes the DAG that sweeps these pipelines every `schedule`, for what was left alone for `after` seconds.

    A pipeline is {"name", "chain", "store", "dead_letter_store"}, as in its `delivery_dag`. The chain is imported by
    the task, not here: one that is broken does not take this DAG along.
    """
    common = {"catchup": False, "start_date": START, "tags": ["homing"], "max_active_runs": 1, **dag_arguments}
    with DAG(dag_id, schedule=schedule, **common) as dag:
        for pipeline in map(_address, pipelines):
            ReconcileOperator(
                task_id=pipeline.name,
                pipeline=pipeline,
                after=after,
                retries=2,
                retry_delay=timedelta(seconds=30),
            )
    return dag


def _address(pipeline: dict[str, Any]) -> PipelineAddress:
    try:
        return PipelineAddress(**pipeline)
    except TypeError as error:
        raise ConfigurationError(
            "a pipeline to reconcile must be a dict of name, chain, store and dead_letter_store, got "
            f"{', '.join(map(str, pipeline))}"
        ) from error
