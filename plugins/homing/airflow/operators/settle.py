"""The end of a run, whatever happened before it: its batch is settled, and what failed is handed on."""

from __future__ import annotations

import time
from typing import Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import DagRunTriggerException

from homing.airflow import manual_replay, metrics
from homing.airflow.links import MessagesLink, ReplayLink
from homing.airflow.pipeline_config import PipelineConfig
from homing.airflow.serialized_dag import FIELD, describe_pipeline
from homing.airflow.task_notes import note, show_messages
from homing.delivery import Settlement, open_pipeline_stores, work_files
from homing.delivery.batch import STRANDED_AFTER
from homing.errors import WorkDirError
from homing.spark.submit import hadoop_shell


class SettleOperator(BaseOperator):
    """Settles the batch, and has what failed replayed by the DAG `replay_dag_id`, the pipeline's own unless another is
    named. To be used as a teardown."""

    operator_extra_links = (MessagesLink(), ReplayLink())
    template_fields = (FIELD,)

    def __init__(self, *, pipeline: PipelineConfig, replay_dag_id: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.pipeline = pipeline
        self.homing_pipeline = describe_pipeline(pipeline)
        self.replay_dag_id = replay_dag_id or pipeline.replay_dag_id
        self.replay_run = ""

    def execute(self, context: Any) -> None:
        run_id = self.pipeline.run_key(context)
        if self.pipeline.approve_replays_above is not None:
            # Before anything waits that the command line could replay.
            with open_pipeline_stores(*self.pipeline.urls()) as stores:
                manual_replay.declare_rule(stores.store, self.pipeline, self.log)
        with self.pipeline.open_batch(run_id) as batch:
            # First: what lies there must not outlive the run's hold on its messages.
            self._clean_up(run_id)
            settlement = batch.settle()
            to_replay, stranded = batch.awaiting_replay(), batch.stranded()
        show_messages(self, context)
        note(self, context, f"Batch {run_id}: {settlement}.")
        metrics.count_settlement(settlement, self.pipeline.name)
        if to_replay or stranded:
            self.log.info("%s replays %d of this batch and %d left over", self.replay_dag_id, to_replay, len(stranded))
            self.replay_run = self._replay_run(context) if to_replay else _left_over_run()
            why = (
                f"Replays {to_replay} messages of batch {run_id}: {settlement}. Left over from before: {len(stranded)}."
            )
            trigger_replay(self.replay_dag_id, self.replay_run, {"batch": run_id, "ids": stranded}, why)

    def _replay_run(self, context: Any) -> str:
        """One replay per pass: settling twice asks for the same one, settling after a clear asks for another."""
        passes = getattr(context["dag_run"], "clear_number", 0) or 0
        return f"{context['run_id']}.{passes}" if passes else str(context["run_id"])

    def _clean_up(self, run_id: str) -> None:
        try:
            work_files.remove(self.pipeline.work_folder, run_id, hadoop_shell)
        except WorkDirError as error:
            # The messages come first: what is left there takes room, and does no other harm.
            self.log.warning("batch %s is settled, and its files are left: %s", run_id, error)


class SettleReplayOperator(BaseOperator):
    """The end of a replay: what its retries could not deliver is dead-lettered, if the failure callback did not."""

    template_fields = (FIELD,)

    def __init__(self, *, pipeline: PipelineConfig, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.pipeline = pipeline
        self.homing_pipeline = describe_pipeline(pipeline)

    def execute(self, context: Any) -> None:
        run_id = self.pipeline.run_key(context)
        left = finish_replay(self.pipeline, run_id)
        said = "nothing" if left == Settlement() else str(left)
        note(self, context, f"What replay {run_id} could not deliver: {said}.")


def _left_over_run() -> str:
    """Returns the id of the run that replays what earlier runs left over.

    For STRANDED_AFTER seconds the id stays the same. However many runs settle in that time and ask for such a replay,
    there is one.
    """
    return f"left_over.{int(time.time() // STRANDED_AFTER)}"


def finish_replay(pipeline: PipelineConfig, run_id: str) -> Settlement:
    """Dead-letters what a replay could not deliver. Idempotent."""
    with pipeline.open_batch(run_id) as batch:
        settlement = batch.finish_replay()
    metrics.count_settlement(settlement, pipeline.name)
    return settlement


def trigger_replay(dag_id: str, run_id: str, conf: dict[str, Any], note: str) -> None:
    """Ends the task that calls it by asking for a run of a replay DAG, with this note; asking twice makes one run."""
    raise DagRunTriggerException(
        trigger_dag_id=dag_id,
        dag_run_id=run_id,
        conf=conf,
        reset_dag_run=False,
        skip_when_already_exists=True,
        wait_for_completion=False,
        allowed_states=[],
        failed_states=[],
        poke_interval=1,
        deferrable=False,
        note=note,
    )
