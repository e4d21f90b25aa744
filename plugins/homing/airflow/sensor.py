"""StoreSensor: the listener of a pipeline. It claims the run's batch, or waits in the triggerer for one."""

from __future__ import annotations

from typing import Any

from airflow.sdk import BaseSensorOperator
from airflow.sdk.exceptions import AirflowSkipException

from homing.airflow.pipeline import PipelineSpec, run_key
from homing.airflow.trigger import StoreTrigger


class StoreSensor(BaseSensorOperator):
    """Claims up to `batch_size` messages for this run; returns the batch's id and size.

    Bound to the run: a retry finds the same batch again, and a run that was cleared gets what of its batch failed,
    never new messages. When none of it is left, the run is skipped.
    """

    def __init__(self, *, pipeline: PipelineSpec, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.pipeline = pipeline

    def execute(self, context: Any, event: Any = None) -> dict[str, Any]:  # noqa: RET503 - defer() raises
        # Claiming first spares the way through the triggerer whenever something is due already.
        with self.pipeline.open_batch(run_key(context)) as batch:
            known = batch.is_known()
            size = batch.claim(self.pipeline.batch_size, self.pipeline.lease)
        if size:
            self.log.info("batch %s: claimed %d messages", batch.run_id, size)
            return {"batch": batch.run_id, "messages": size}
        if event and event.get("give_way"):
            raise AirflowSkipException("nothing is due, and another run is waiting for this one to end")
        if known:
            raise AirflowSkipException(f"batch {batch.run_id} is complete: nothing is left to deliver")
        self.log.info("nothing is due in store %s: listening", batch.store_name)
        self.defer(
            trigger=StoreTrigger(self.pipeline.store, self.pipeline.polling_interval, context["dag"].dag_id),
            method_name="execute",
        )
