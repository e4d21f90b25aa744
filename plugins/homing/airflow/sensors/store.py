"""StoreSensor: the listener of a DAG. It claims the run's batch, or waits for one."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from airflow.sdk import BaseSensorOperator, PokeReturnValue
from airflow.sdk.exceptions import AirflowSkipException

from homing.airflow import manual_replay, metrics
from homing.airflow.hooks.store import find_url
from homing.airflow.links import MessagesLink
from homing.airflow.pipeline_config import PipelineConfig, run_key
from homing.airflow.serialized_dag import FIELD, describe_pipeline
from homing.airflow.task_notes import note, show_messages
from homing.airflow.trial_run import end_trial_run
from homing.airflow.triggers.store import StoreTrigger
from homing.constraints import AtLeastOne, Positive, check, partition_numbers
from homing.delivery import open_pipeline_stores, work_files
from homing.delivery.batch import Batch
from homing.delivery.intake import take_in
from homing.errors import ConfigurationError, SourceUnavailableError, UnsupportedError
from homing.pipeline_store import is_pipeline_store
from homing.spark.submit import hadoop_shell
from homing.store import Store
from homing.store_ref import StoreRef
from homing.stores import open_store


@dataclass(frozen=True)
class Claim:
    """What a run got from a store: `known` says that it had messages of its own before."""

    store: str
    messages: int
    known: bool


class StoreSensor(BaseSensorOperator):
    """Claims up to `batch_size` messages for this run; returns the batch's id and size.

    Bound to the run: a retry finds the same batch again, and a run that was cleared gets what of its batch failed,
    never new messages. When none of it is left, the run is skipped; when it is more than may be replayed without an
    approval, the task fails.

    It listens for a `pipeline`, or to a SQL `store` alone; then the next task claims the same batch with
    `store.claim(n, batch_id=...)` and settles it. It waits in the triggerer, unless `mode` is given ("poke" or
    "reschedule") or `deferrable` is False; between two looks there are `polling_interval` seconds. With `partitions`,
    it claims only messages of these, and leaves the others to other sensors.
    """

    operator_extra_links = (MessagesLink(),)
    template_fields = (FIELD,)

    def __init__(
        self,
        *,
        pipeline: PipelineConfig | None = None,
        store: str | StoreRef | None = None,
        polling_interval: float = PipelineConfig.polling_interval,
        batch_size: int = PipelineConfig.batch_size,
        lease: float = PipelineConfig.lease,
        partitions: Collection[int] | None = None,
        deferrable: bool | None = None,
        **kwargs: Any,
    ) -> None:
        if (pipeline is None) == (store is None):
            raise ConfigurationError("a StoreSensor listens for a pipeline= or to a store=, one of them")
        self.polling_interval = (
            pipeline.polling_interval if pipeline else check("polling_interval", polling_interval, Positive)
        )
        self.deferrable = "mode" not in kwargs if deferrable is None else deferrable
        if self.deferrable and "mode" in kwargs:
            raise ConfigurationError(f"deferrable=True waits in the triggerer, and mode={kwargs['mode']!r} does not")
        self._waits = timedelta(seconds=kwargs["timeout"]) if "timeout" in kwargs else None
        super().__init__(**{"poke_interval": self.polling_interval, **kwargs})
        self.pipeline = pipeline
        self.homing_pipeline = describe_pipeline(pipeline)
        self.store = None if store is None else StoreRef(store)
        self.batch_size = pipeline.batch_size if pipeline else check("batch_size", batch_size, AtLeastOne)
        self.lease = pipeline.lease if pipeline else check("lease", lease, Positive)
        self.partitions = pipeline.partitions if pipeline else partition_numbers(partitions)

    def execute(self, context: Any, event: Any = None) -> Any:
        if not self.deferrable:
            return super().execute(context)
        # Claiming first spares the way through the triggerer whenever something is due already.
        claim = self._claim(context)
        if claim.messages:
            return self._result(context, claim)
        if event and event.get("give_way"):
            raise AirflowSkipException("nothing is due, and another run is waiting for this one to end")
        self._skip_if_complete(context, claim)
        end_trial_run(claim.store)
        self.log.info("nothing is due in store %s: listening", claim.store)
        return self.defer(trigger=self._trigger(context["dag"]), method_name="execute", timeout=self._waits)

    def _trigger(self, dag: Any) -> StoreTrigger:
        source = self.pipeline.source if self.pipeline else None
        store = self.pipeline.store if self.pipeline else self.store
        assert store is not None
        # Where other runs have places of their own, there is no run to give way to.
        give_way_to = dag.dag_id if dag.max_active_runs == 1 else None
        pipeline = self.pipeline is not None
        return StoreTrigger(
            store, self.polling_interval, give_way_to, source, pipeline=pipeline, partitions=self.partitions
        )

    def poke(self, context: Any) -> PokeReturnValue:
        """One look, and the claim if something is due. For the modes that do not defer."""
        claim = self._claim(context)
        if not claim.messages:
            self._skip_if_complete(context, claim)
            end_trial_run(claim.store)
            return PokeReturnValue(is_done=False)
        return PokeReturnValue(is_done=True, xcom_value=self._result(context, claim))

    def _skip_if_complete(self, context: Any, claim: Claim) -> None:
        if claim.known:
            raise AirflowSkipException(f"batch {self._key(context)} is complete: nothing is left to deliver")

    def _result(self, context: Any, claim: Claim) -> dict[str, Any]:
        key = self._key(context)
        if self.pipeline is not None:
            show_messages(self, context)
        note(self, context, f"Batch {key}: claimed {claim.messages} messages of store {claim.store}.")
        metrics.count_messages("claimed", claim.messages, store=claim.store)
        return {"batch": key, "messages": claim.messages}

    def _key(self, context: Any) -> str:
        return self.pipeline.run_key(context) if self.pipeline else run_key(context)

    def _claim(self, context: Any) -> Claim:
        key = self._key(context)
        if self.pipeline is None:
            return self._claim_of_store(key)
        with open_pipeline_stores(*self.pipeline.urls()) as stores:
            batch = Batch(stores, key, self.pipeline.flows, chain=self.pipeline.chain_name)
            known = batch.is_known()
            if known:
                manual_replay.require_allowed(stores.store, self.pipeline, context, len(batch.set_aside()))
            if self.pipeline.source and not known:
                self._take_in(self.pipeline.source, stores.store)
            metrics.oldest_age(stores.store)
            if known or stores.store.has_due(partitions=self.partitions):
                work_files.require(self.pipeline.work_folder, hadoop_shell)
            return Claim(batch.store_name, batch.claim(self.batch_size, self.lease, partitions=self.partitions), known)

    def _take_in(self, reference: str | StoreRef, target: Store) -> None:
        """The broker hears of it only after the commit; whatever dies in between, it comes again. While the broker is
        away, what is in the pipeline's store already goes on; while that takes nothing, the task is tried again."""
        try:
            with open_store(find_url(reference)) as source:
                taken = take_in(source, target, self.batch_size)
        except SourceUnavailableError as error:
            self.log.warning("going on without the source: %s", error)
        else:
            metrics.count_messages("accepted", taken, store=target.name)

    def _claim_of_store(self, key: str) -> Claim:
        assert self.store is not None
        with open_store(find_url(self.store)) as store:
            if not is_pipeline_store(store):
                raise UnsupportedError(
                    f"a batch in store {store.name!r} would not outlive its task: take it in with the source= of a "
                    "delivery_dag, or use listener_dag"
                )
            known = store.knows_batch(key)
            metrics.oldest_age(store)
            held = store.lease_batch(self.batch_size, batch_id=key, lease=self.lease, partitions=self.partitions)
            return Claim(store.name, held.size if held else 0, known)
