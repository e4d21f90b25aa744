"""The tasks of a pipeline: Spark jobs for processing, delivering and replaying, and the settling of the run's batch."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException, DagRunTriggerException
from airflow.sdk.log import mask_secret

import homing
from homing.airflow.pipeline import PipelineSpec, run_key
from homing.delivery import Settlement, work
from homing.delivery.class_archive import cache_folder, class_archive
from homing.delivery.reach import build_py_files, is_local, refuse_unreachable
from homing.errors import ConfigurationError
from homing.pipeline import load_chain

# How spark-submit reports our exit code 2: running the job again would not help.
_SET_UP_WRONGLY = "Error code is: 2."


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
        self._reach_executors()
        self.application_args = self._arguments(run_id)
        self.name = f"homing {self.task_id}"
        with class_archive() as faster, self._environment(faster):
            self._submit(context)

    def _reach_executors(self) -> None:
        """Sees to it that executors on other machines have the code, and can open the stores."""
        master = self._get_hook()._connection["master"]  # noqa: SLF001 - nowhere else is it to be had
        if is_local(master):
            return
        try:
            refuse_unreachable(master, *self.pipeline.urls())
        except ConfigurationError as error:
            raise AirflowFailException(str(error)) from error
        self._python_path()  # the chain is importable from now on
        code = build_py_files(cache_folder(), self.pipeline.chain.partition(":")[0])
        self.py_files = ",".join(filter(None, [self.py_files, str(code)]))

    def _submit(self, context: Any) -> None:
        try:
            super().execute(context)
        except AirflowException as error:
            if _SET_UP_WRONGLY in str(error):
                raise AirflowFailException(str(error)) from error
            raise

    def _hold(self, context: Any, run_id: str) -> int:
        """Makes sure the run holds its batch; how many messages that is."""
        with self.pipeline.open_batch(run_id) as batch:
            return batch.reclaim((), self.pipeline.lease)

    def _arguments(self, run_id: str) -> list[str]:
        return ["--chain", self.pipeline.chain, "--run-id", run_id, "--lease", str(self.pipeline.lease)]

    @contextmanager
    def _environment(self, more: dict[str, str]) -> Iterator[None]:
        """The stores in this process's environment, which spark-submit inherits, and nowhere else: whatever the
        operator keeps in its fields is rendered, logged or shown."""
        store, dead_letter_store = self.pipeline.urls()
        for secret in (store, dead_letter_store):
            mask_secret(secret)
        added = {
            "HOMING_STORE": store,
            "HOMING_DEAD_LETTER_STORE": dead_letter_store,
            "PYTHONPATH": os.pathsep.join(self._python_path()),
            **more,
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
        """Airflow can import the chain's module from the DAG folder; Spark is told where it was found."""
        module = self.pipeline.chain.partition(":")[0]
        load_chain(self.pipeline.chain)
        source = Path(sys.modules[module].__file__ or "")
        above = module.count(".") + (source.stem == "__init__")
        return [str(source.parents[above]), *filter(None, [os.environ.get("PYTHONPATH", "")])]


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
            size = batch.reclaim([*ids, *(batch.unfinished(of_batch) if of_batch else [])], self.pipeline.lease)
            unknown = [] if size else batch.unknown(ids, of_batch)
        if unknown:
            raise AirflowFailException(f"nothing is known in store {batch.store_name!r} of {', '.join(unknown[:10])}")
        return size


class SettleOperator(BaseOperator):
    """The end of a run, whatever happened before it: settles the batch, and has what failed replayed."""

    def __init__(self, *, pipeline: PipelineSpec, replay_dag_id: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.pipeline = pipeline
        self.replay_dag_id = replay_dag_id

    def execute(self, context: Any) -> None:
        run_id = run_key(context)
        with self.pipeline.open_batch(run_id) as batch:
            # First: what lies there must not outlive the run's hold on its messages.
            work.remove(self.pipeline.work_dir, run_id)
            settlement = batch.settle()
            to_replay, stranded = batch.awaiting_replay(), batch.stranded()
        self.log.info("batch %s: %s", run_id, settlement)
        if to_replay or stranded:
            self.log.info("%s replays %d of this batch and %d left over", self.replay_dag_id, to_replay, len(stranded))
            self._trigger_replay(context, {"batch": run_id, "ids": stranded})

    def _trigger_replay(self, context: Any, conf: dict[str, Any]) -> None:
        # One replay per pass: settling twice asks for the same one, settling after a clear asks for another.
        passes = getattr(context["dag_run"], "clear_number", 0) or 0
        suffix = f".{passes}" if passes else ""
        raise DagRunTriggerException(
            trigger_dag_id=self.replay_dag_id,
            dag_run_id=f"{context['run_id']}{suffix}",
            conf=conf,
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
