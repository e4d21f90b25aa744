"""The Spark jobs of a pipeline as tasks: processing, delivering, replaying."""

from __future__ import annotations

import math
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowTaskTerminated
from airflow.sdk.log import mask_secret

from homing.airflow import manual_replay, metrics
from homing.airflow.hooks.handler_connections import connections_in_task, find_connections
from homing.airflow.hooks.spark import LOCAL_MASTER, spark_connection
from homing.airflow.links import MessagesLink, SparkLink
from homing.airflow.pipeline_config import PipelineConfig
from homing.airflow.serialized_dag import FIELD, describe_pipeline
from homing.airflow.task_notes import note, show_messages
from homing.airflow.xcoms import read_names
from homing.connection import hide_secrets
from homing.delivery import Batch, open_pipeline_stores
from homing.delivery.leased_part import LeasedMessage
from homing.delivery.local_replay import replay_in_process
from homing.delivery.step import flows_of
from homing.errors import ConfigurationError, HomingError, JobError
from homing.invocation.interrupts import is_user_interrupt
from homing.pipeline import load_chain
from homing.spark.submit.class_archive import Start
from homing.spark.submit.job import SET_UP_WRONGLY, Job, find_ui
from homing.spark.submit.master import is_connect, is_local, settings_of
from homing.spark.submit.py_files import PY_FILES

_SLOWEST = 1e-5  # messages per second: about one a day
# How Airflow's hook reports a job that running again would not help.
_SET_UP_WRONGLY = f"Error code is: {SET_UP_WRONGLY}."


class PipelineJobOperator(SparkSubmitOperator):
    """A Spark application of ours, run over the batch that this run holds. Skips Spark when it holds nothing."""

    application_name: str
    operator_extra_links = (MessagesLink(), SparkLink())
    template_fields = (*SparkSubmitOperator.template_fields, FIELD)

    def __init__(self, *, pipeline: PipelineConfig, **kwargs: Any) -> None:
        # Spark's own INFO lines would hide what happened to the messages.
        conf = {"spark.log.level": "WARN", **(pipeline.spark_conf or {}), **(kwargs.pop("conf", None) or {})}
        # Another try starts another job, which takes over what is left; it is not to wait for the one it replaces.
        super().__init__(**{"durable": False, "conn_id": pipeline.spark_conn_id, **kwargs, "conf": conf})
        self.pipeline = pipeline
        self.homing_pipeline = describe_pipeline(pipeline)
        self.spark_application = ""
        self._start: Start | None = None
        self._show_spark_ui: Callable[[str], None] = lambda _: None
        self._client: subprocess.Popen[str] | None = None
        self._killed = False

    def execute(self, context: Any) -> None:
        run_id = self.pipeline.run_key(context)
        given = self._connections()
        self._show_messages(context)
        manual_replay.note_clear(self.pipeline, context)
        size = self._hold(context, run_id)
        if not size:
            self.log.info("batch %s holds no messages: no Spark job is needed", run_id)
            return
        with self._ending_no_message(run_id):
            self._run_job(context, run_id, size, given)

    def _connections(self) -> dict[str, str]:
        """What the handlers that this task may run log in with, as Airflow knows it at this try. Secrets.

        Raises MissingConnectionError, and the task is tried again: Airflow finds none where it could not ask, either.
        """
        return find_connections(load_chain(self.pipeline.chain).connections(*flows_of(self._step())))

    @contextmanager
    def _ending_no_message(self, run_id: str) -> Iterator[None]:
        """A job that Airflow ends, by a timeout or by a person, is the fault of no message."""
        try:
            yield
        except BaseException as error:
            if is_user_interrupt(error) and not self._killed:
                self.on_kill()
            if self._killed:
                with suppress(HomingError), self.pipeline.open_batch(run_id) as batch:
                    batch.close_step(self._step())
            raise

    def _run_job(self, context: Any, run_id: str, size: int, given: Mapping[str, str]) -> None:
        pipeline = self.pipeline
        job = Job(self.application_name, pipeline.chain, pipeline.work_folder, pipeline.urls(), given)
        self.application = str(job.application)
        connection = self._spark_connection()
        master = connection["master"]
        self.conf = {**settings_of(master), **(self.conf or {})}
        if not is_local(master):
            self._bring_code(job, connection)
        self.application_args = self._arguments(run_id)
        self.name = f"homing {self.task_id}"
        if (
            size <= self.pipeline.spark_above
            and job.can_run_without_spark(master)
            and self._done_without_spark(job, run_id)
        ):
            return
        if is_connect(master):
            mask_secret(master)  # there may be a token in it
            with job.environment({"SPARK_REMOTE": master, PY_FILES: self.py_files or ""}):
                self._run_client(job)
            return
        # What the job needs of the stores is in the environment: whatever the operator keeps in its fields is rendered,
        # logged or shown.
        with self._set_up_rightly(), job.submission(connection) as (start, files):
            self.files = ",".join(filter(None, [self.files, *files])) or None
            self._start = start
            self._submit(context)

    def _spark_connection(self) -> dict[str, Any]:
        with self._set_up_rightly(), spark_connection(self._conn_id) as configured:
            connection = dict(self._get_hook()._connection)  # noqa: SLF001 - nowhere else is it to be had
        if not configured:
            self.log.info(
                "there is no Airflow connection %r: Spark runs on this machine (%s); a cluster is what you configure",
                self._conn_id,
                LOCAL_MASTER,
            )
        return connection

    @staticmethod
    @contextmanager
    def _set_up_rightly() -> Iterator[None]:
        """Where something is set up wrongly, another try does not help."""
        try:
            yield
        except ConfigurationError as error:
            raise AirflowFailException(str(error)) from error

    def _bring_code(self, job: Job, connection: dict[str, Any]) -> None:
        """Sees to it that a driver and executors on other machines have the code, and can open the stores."""
        with self._set_up_rightly():
            job.check(connection, self.conf or {})
        self.py_files = ",".join(filter(None, [self.py_files, str(job.build_py_files())]))

    def _show_messages(self, context: Any) -> None:
        show_messages(self, context)

    def _get_hook(self) -> SparkSubmitHook:
        with spark_connection(self._conn_id):
            hook = super()._get_hook()
        # The only way to see the lines while the job runs.
        read = hook._process_spark_submit_log  # noqa: SLF001
        setattr(hook, read.__name__, lambda lines: read(self._watched(lines)))
        return hook

    def _watched(self, lines: Iterator[Any]) -> Iterator[Any]:
        """The job's output, in which it says where Spark's UI can be seen. Without what its handlers log in with, which
        Airflow hides in the task's log and not in copies of it."""
        for line in lines:
            # It says so before it has read a message: a later line may be what a handler prints of one.
            if not self.spark_application and (found := find_ui(str(line))):
                self.spark_application, ui = found
                if self._start is not None:
                    self._start.note_session()
                try:
                    self._show_spark_ui(ui)
                except Exception as error:  # noqa: BLE001 - a job that runs is not to be left alone for a link
                    self.log.warning("the link to Spark's UI was not stored: %s", error)
            if self._start is not None:
                self._start.note_line()
            yield hide_secrets(str(line))

    def _submit(self, context: Any) -> None:
        self._show_spark_ui = lambda ui: context["ti"].xcom_push(key=SparkLink().xcom_key, value=ui)
        try:
            super().execute(context)
        except AirflowException as error:
            if _SET_UP_WRONGLY in str(error):
                raise AirflowFailException(str(error)) from error
            raise

    def _done_without_spark(self, job: Job, run_id: str) -> bool:
        """Works on a small batch in one plain process, without Spark. Returns False if that process died.

        Such a process is done before Spark would have started.
        """
        self.log.info("up to %d messages are worked on without Spark", self.pipeline.spark_above)
        try:
            with job.environment():
                self._run_client(job, "--without-spark")
        except AirflowFailException:
            raise
        except AirflowException:
            with self.pipeline.open_batch(run_id) as batch:
                if self._killed or not batch.is_open(self._step()):
                    raise
            self.log.warning("the process crashed: continuing on Spark, which finds the message that crashed it")
            return False
        return True

    def _step(self) -> str:
        """What the ledger calls this task's work."""
        return self.application_name.removesuffix(".py")

    def _run_client(self, job: Job, *more: str) -> None:
        try:
            with job.client([*(self.application_args or ()), *more]) as client:
                self._client = client
                for line in client.stdout or ():
                    self.log.info("%s", hide_secrets(line.rstrip()))
        except ConfigurationError as error:
            raise AirflowFailException(str(error)) from error
        except JobError as error:
            raise AirflowException(str(error)) from error

    def on_kill(self) -> None:
        self._killed = True
        if self._client is None or self._client.poll() is not None:
            super().on_kill()
        else:
            self._client.terminate()

    def _hold(self, context: Any, run_id: str) -> int:
        """Makes sure that the run holds its batch. Returns how many messages it holds."""
        with self.pipeline.open_batch(run_id) as batch:
            return batch.reclaim((), self._lease())

    def _lease(self) -> float:
        """For how many seconds the job holds its batch without a sign of life: the longest wait for the task's next try
        is part of it, because no task renews the lease then."""
        if not self.retries:
            return self.pipeline.lease
        wait = _seconds(self.retry_delay)
        if (growth := float(self.retry_exponential_backoff)) > 1:
            wait *= 2 * growth ** (self.retries - 1)  # Airflow makes a growing delay up to twice as long
        if self.max_retry_delay is not None:
            wait = min(wait, _seconds(self.max_retry_delay))
        return self.pipeline.lease + wait

    def _arguments(self, run_id: str) -> list[str]:
        return ["--chain", self.pipeline.chain, "--run-id", run_id, "--lease", str(self._lease())]


class ProcessOperator(PipelineJobOperator):
    """Runs the chain's source flow over the batch."""

    application_name = "process.py"

    def _arguments(self, run_id: str) -> list[str]:
        return [*super()._arguments(run_id), "--work-dir", self.pipeline.work_folder]


class DeliverOperator(PipelineJobOperator):
    """Delivers the processed batch to one destination."""

    application_name = "deliver.py"

    def __init__(self, *, flow: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.flow = flow

    def _arguments(self, run_id: str) -> list[str]:
        return [*super()._arguments(run_id), "--work-dir", self.pipeline.work_folder, "--flow", self.flow]

    def _step(self) -> str:
        return f"deliver.{self.flow}"


class ReplayOperator(PipelineJobOperator):
    """Runs the messages of these `ids` through the whole chain again, skipping what was delivered.

    Fails while any message still fails, so that the task's retries are the message's retries.

    With a `rate`, each destination gets at most so many messages a second. The replay then runs in the task itself and
    not on Spark. It delivers to all destinations at the same time; only after a crash, one message at a time. If
    handlers take DataFrames, which only Spark has, it runs on Spark, which keeps to the rate, too.
    """

    application_name = "replay.py"
    template_fields = (*PipelineJobOperator.template_fields, "ids", "rate")

    def __init__(self, *, ids: Any, rate: Any = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.ids = ids
        self.rate = rate
        self._names: list[str] = []
        self._held: list[LeasedMessage] = []
        self._begun = False
        self._replays = False

    def execute(self, context: Any) -> None:
        run_id, rate = self.pipeline.run_key(context), self._rate()
        self._names = read_names(self.ids)
        try:
            with self._blaming_no_message(run_id):
                self._replay(context, run_id, rate)
        finally:
            # Also when some still fail: those that do not are acknowledged, and no settlement will see them again.
            self._count_completed(context, run_id)

    def _replay(self, context: Any, run_id: str, rate: float) -> None:
        if not rate or load_chain(self.pipeline.chain).takes_dataframes:
            super().execute(context)
            return
        given = self._connections()
        self._show_messages(context)
        manual_replay.note_clear(self.pipeline, context)
        if self._hold(context, run_id):
            with connections_in_task(given):
                self._replay_here(run_id, rate)

    @contextmanager
    def _blaming_no_message(self, run_id: str) -> Iterator[None]:
        """What is set up wrongly ends the task at once, and takes no retry from a message: what failed in an earlier
        try is given back, or the end of this task would dead-letter it."""
        try:
            yield
        except (AirflowFailException, ConfigurationError) as error:
            with self.pipeline.open_batch(run_id) as batch:
                batch.release()
            raise AirflowFailException(str(error)) from error

    def _lease(self) -> float:
        return self.pipeline.hold

    def _rate(self) -> float:
        """Returns the messages a second for each destination; 0 for no limit. A rate that makes no sense fails the task
        before it holds any message."""
        if self.rate in (None, "", "None"):
            return 0.0
        try:
            rate = float(self.rate)
        except (TypeError, ValueError):
            rate = math.nan
        if rate and not _SLOWEST <= rate < math.inf:
            raise AirflowFailException(f"rate must be >= {_SLOWEST} messages per second, got {self.rate!r:.80}")
        return rate

    def _arguments(self, run_id: str) -> list[str]:
        rate = self._rate()
        return [*super()._arguments(run_id), *(["--rate", str(rate)] if rate else [])]

    def _show_messages(self, context: Any) -> None:
        show_messages(self, context, self._names)

    def _hold(self, context: Any, run_id: str) -> int:
        with open_pipeline_stores(*self.pipeline.urls()) as stores:
            if not manual_replay.may_replay(stores.store, self.pipeline, context, self._names):
                raise AirflowFailException(
                    f"the replay of these {len(self._names)} messages was not approved: `select` selected others, or "
                    "its XCom has been changed since"
                )
            self._begun = True
            batch = Batch(stores, run_id, self.pipeline.flows, chain=self.pipeline.chain_name)
            size = batch.reclaim(self._names, self.pipeline.hold)
            self._held = batch.messages()
        metrics.count_messages("replayed", size, pipeline=self.pipeline.name)
        return size

    def _count_completed(self, context: Any, run_id: str) -> None:
        # A store that is away is the job's trouble, not that of its metrics.
        with suppress(HomingError), self.pipeline.open_batch(run_id) as batch:
            left = {message.ref for message in batch.messages()}
            done = batch.completed([message for message in self._held if message.ref not in left])
            metrics.count_settlement(done, self.pipeline.name)
            sums = f"{done.delivered} delivered, {done.dropped} dropped by rule"
            note(self, context, f"Of {len(self._held)} messages: {sums}, {len(left)} left.")
            self._write_down(context, len(left))

    def _write_down(self, context: Any, left: int) -> None:
        ti, ids = context["ti"], list(self.ids or ())
        again = left and getattr(ti, "try_number", 0) <= getattr(ti, "max_tries", 0)
        if again or not self._begun:
            return
        with open_pipeline_stores(*self.pipeline.urls()) as stores:
            outcome = {"replayed": len(ids), "left": left}
            manual_replay.finish(stores.store, context, ids, done=not left, outcome=outcome)

    def on_kill(self) -> None:
        if not self._replays:
            super().on_kill()
            return
        # Called while a message is in hand, by the handler of SIGTERM: this ends the replay, and fails no message.
        raise AirflowTaskTerminated("the replay was ended by hand: its messages stay where they were")

    def _replay_here(self, run_id: str, rate: float) -> None:
        with open_pipeline_stores(*self.pipeline.urls()) as stores, load_chain(self.pipeline.chain) as chain:
            batch = Batch(stores, run_id, self.pipeline.flows, chain=self.pipeline.chain_name)
            self._replays = True
            try:
                tally = replay_in_process(stores, batch, chain, rate=rate, lease=self.pipeline.hold)
            finally:
                self._replays = False
            left = batch.acknowledge_complete()
        self.log.info("replayed at %s messages per second: %s", rate, dict(tally))
        if left:
            raise AirflowException(f"{left} messages still fail: they stay where they were")


def _seconds(delay: timedelta | float) -> float:
    return delay.total_seconds() if isinstance(delay, timedelta) else delay
