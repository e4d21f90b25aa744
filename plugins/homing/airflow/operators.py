"""The tasks of a pipeline: Spark jobs for processing, delivering and replaying, and the settling of the run's batch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import DagRunTriggerException
from airflow.sdk.log import mask_secret

import homing
from homing.airflow.pipeline import PipelineSpec, run_key
from homing.delivery import Settlement, work
from homing.errors import ConfigurationError


class PipelineJobOperator(SparkSubmitOperator):
    """A Spark application of ours, run over the batch that this run holds. Skips Spark when it holds nothing."""

    application_name: str

    def __init__(self, *, pipeline: PipelineSpec, **kwargs: Any) -> None:
        # Spark's own INFO lines would bury what happened to the messages.
        super().__init__(**{**kwargs, "conf": {"spark.log.level": "WARN", **(kwargs.get("conf") or {})}})
        self.pipeline = pipeline

    def execute(self, context: Any) -> None:
        run_id = run_key(context)
        if not self._hold(context, run_id):
            self.log.info("batch %s holds no messages: no Spark job is needed", run_id)
            return
        self.application = str(_application(self.application_name))
        self.application_args = self._arguments(run_id)
        self.name = f"homing {self.task_id}"
        with self._environment():
            super().execute(context)

    def _hold(self, context: Any, run_id: str) -> int:
        """Makes sure the run holds its batch; how many messages that is."""
        with self.pipeline.open_batch(run_id) as batch:
            return batch.reclaim((), self.pipeline.lease)

    def _arguments(self, run_id: str) -> list[str]:
        return ["--chain", self.pipeline.chain, "--run-id", run_id, "--lease", str(self.pipeline.lease)]

    @contextmanager
    def _environment(self) -> Iterator[None]:
        """The stores in this process's environment, which spark-submit inherits, and nowhere else: whatever the
        operator keeps in its fields is rendered, logged or shown."""
        store, dead_letter_store = self.pipeline.urls()
        for secret in (store, dead_letter_store):
            mask_secret(secret)
        added = {
            "HOMING_STORE": store,
            "HOMING_DEAD_LETTER_STORE": dead_letter_store,
            "PYTHONPATH": os.pathsep.join(self._python_path()),
        }
        before = {name: os.environ.get(name) for name in added}
        os.environ.update(added)
        try:
            yield
        finally:
            # `airflow dags test` runs one task after the other in one process.
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})

    def _python_path(self) -> list[str]:
        """The chain's module lies beside the DAG file, which Airflow can import from and Spark cannot."""
        inherited = os.environ.get("PYTHONPATH", "")
        return [str(Path(self.dag.fileloc).parent), *filter(None, [inherited])]


class ProcessOperator(PipelineJobOperator):
    """Runs the chain's source flow over the batch."""

    application_name = "process.py"

    def _arguments(self, run_id: str) -> list[str]:
        return [*super()._arguments(run_id), "--work-dir", self.pipeline.work_dir]


class DeliverOperator(PipelineJobOperator):
    """Delivers the processed batch to one destination."""

    application_name = "deliver.py"

    def __init__(self, *, flow: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.flow = flow

    def _arguments(self, run_id: str) -> list[str]:
        return [*super()._arguments(run_id), "--work-dir", self.pipeline.work_dir, "--flow", self.flow]


class ReplayOperator(PipelineJobOperator):
    """Runs what failed through the whole chain again, skipping what was delivered.

    Fails while any message still fails, so that the task's retries are the message's retries. Which messages is said
    by the run's params: `batch`, the id of a batch, or `ids`, a list of message ids.
    """

    application_name = "replay.py"

    def _hold(self, context: Any, run_id: str) -> int:
        ids, of_batch = context["params"].get("ids") or [], context["params"].get("batch")
        if not ids and not of_batch:
            raise ConfigurationError("say what to replay: set the param `batch` to a batch id, or `ids` to message ids")
        with self.pipeline.open_batch(run_id) as batch:
            return batch.reclaim([*ids, *(batch.unfinished(of_batch) if of_batch else [])], self.pipeline.lease)


class SettleOperator(BaseOperator):
    """The end of a run, whatever happened before it: settles the batch, and has what failed replayed."""

    def __init__(self, *, pipeline: PipelineSpec, replay_dag_id: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.pipeline = pipeline
        self.replay_dag_id = replay_dag_id

    def execute(self, context: Any) -> None:
        run_id = run_key(context)
        with self.pipeline.open_batch(run_id) as batch:
            settlement = batch.settle()
            to_replay = batch.awaiting_replay()
        work.remove(self.pipeline.work_dir, run_id)
        self.log.info("batch %s: %s", run_id, settlement)
        if to_replay:
            self._trigger_replay(context, run_id, to_replay)

    def _trigger_replay(self, context: Any, run_id: str, messages: int) -> None:
        self.log.info("batch %s: %d messages are to be replayed by %s", run_id, messages, self.replay_dag_id)
        # One replay per pass: settling twice asks for the same one, settling after a clear asks for another.
        passes = getattr(context["dag_run"], "clear_number", 0) or 0
        suffix = f".{passes}" if passes else ""
        raise DagRunTriggerException(
            trigger_dag_id=self.replay_dag_id,
            dag_run_id=f"{context['run_id']}{suffix}",
            conf={"batch": run_id},
            reset_dag_run=False,
            skip_when_already_exists=True,
            wait_for_completion=False,
            allowed_states=[],
            failed_states=[],
            poke_interval=1,
            deferrable=False,
        )


class SettleReplayOperator(BaseOperator):
    """The end of a replay: what its retries could not deliver is dead-lettered, if the failure callback did not."""

    def __init__(self, *, pipeline: PipelineSpec, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.pipeline = pipeline

    def execute(self, context: Any) -> None:
        self.log.info("%s", finish_replay(self.pipeline, run_key(context)))


def finish_replay(pipeline: PipelineSpec, run_id: str) -> Settlement:
    """Dead-letters what a replay could not deliver. Idempotent."""
    with pipeline.open_batch(run_id) as batch:
        return batch.finish_replay()


def _application(name: str) -> Path:
    """Where the Spark applications lie: beside plugins/."""
    path = Path(homing.__file__).parents[2] / "spark_apps" / name
    if not path.is_file():
        raise ConfigurationError(
            f"the Spark application {path} is missing: install Homing from its repository, editable"
        )
    return path
