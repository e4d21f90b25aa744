"""The Spark jobs of a pipeline as tasks: processing, delivering, replaying."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowTaskTerminated
from airflow.sdk.log import mask_secret

import homing
from homing.airflow import by_hand, handing_over, metrics
from homing.airflow.links import MessagesLink, SparkLink
from homing.airflow.pipeline import PipelineSpec
from homing.airflow.serialized import FIELD, describe
from homing.airflow.telling import note, show_messages
from homing.airflow.xcoms import read_names
from homing.calling.interrupts import is_interrupt
from homing.delivery import Batch, open_pipeline_stores
from homing.delivery.class_archive import class_archive
from homing.delivery.holding import Head
from homing.delivery.private_folder import cache_folder
from homing.delivery.reach import PY_FILES, build_py_files, is_local, refuse_unreachable
from homing.delivery.replaying import replay_here
from homing.delivery.work import local_path
from homing.errors import ConfigurationError, HomingError
from homing.pipeline import load_chain

_SLOWEST = 1e-5  # messages per second: about one a day
# Our exit code when running the job again would not help, and how spark-submit reports it.
_WRONGLY = 2
_SET_UP_WRONGLY = f"Error code is: {_WRONGLY}."
# What homing.spark.app says when its session is there.
_SPARK_UI = re.compile(r"Spark application (?P<application>\S+) has its UI at (?P<ui>https?://\S+)")


class PipelineJobOperator(SparkSubmitOperator):
    """A Spark application of ours, run over the batch that this run holds. Skips Spark when it holds nothing."""

    application_name: str
    operator_extra_links = (MessagesLink(), SparkLink())
    template_fields = (*SparkSubmitOperator.template_fields, FIELD)

    def __init__(self, *, pipeline: PipelineSpec, **kwargs: Any) -> None:
        # Spark's own INFO lines would bury what happened to the messages.
        conf = {"spark.log.level": "WARN", **(kwargs.pop("conf", None) or {})}
        # Another try starts another job, which takes over what is left; it is not to wait for the one it replaces.
        super().__init__(**{"durable": False, **kwargs, "conf": conf})
        self.pipeline = pipeline
        self.homing_pipeline = describe(pipeline)
        self.spark_application = ""
        self._show_spark_ui: Callable[[str], None] = lambda _: None
        self._client: subprocess.Popen[str] | None = None
        self._killed = False

    def execute(self, context: Any) -> None:
        run_id = self.pipeline.run_key(context)
        self._show_messages(context)
        by_hand.note_clear(self.pipeline, context)
        size = self._hold(context, run_id)
        if not size:
            self.log.info("batch %s holds no messages: no Spark job is needed", run_id)
            return
        with self._ending_no_message(run_id):
            self._run_job(context, run_id, size)

    @contextmanager
    def _ending_no_message(self, run_id: str) -> Iterator[None]:
        """A job that Airflow ends, because its time is up or somebody said so, has died of no message."""
        try:
            yield
        except BaseException as error:
            if is_interrupt(error) and not self._killed:
                self.on_kill()
            if self._killed:
                with suppress(HomingError), self.pipeline.open_batch(run_id) as batch:
                    batch.close_step(self._step())
            raise

    def _run_job(self, context: Any, run_id: str, size: int) -> None:
        self.application = str(_application(self.application_name))
        connection = self._get_hook()._connection  # noqa: SLF001 - nowhere else is it to be had
        self._reach_executors(connection)
        self.application_args = self._arguments(run_id)
        self.name = f"homing {self.task_id}"
        if self._is_small(size, connection) and self._done_alone(run_id):
            return
        if handing_over.is_connect(connection):
            mask_secret(connection["master"])  # there may be a token in it
            with self._environment({"SPARK_REMOTE": connection["master"], PY_FILES: self.py_files or ""}):
                self._run_client()
            return
        with (
            class_archive() as start,
            self._environment(start.environment),
            handing_over.files_for(connection, self._stores()) as files,
        ):
            self.files = ",".join(filter(None, [self.files, *files])) or None
            self._submit(context)
            start.had_session = bool(self.spark_application)

    def _reach_executors(self, connection: dict[str, Any]) -> None:
        """Sees to it that a driver and executors on other machines have the code, and can open the stores."""
        master = connection["master"]
        if is_local(master):
            return
        try:
            handing_over.check(connection, self.conf or {}, self._stores())
            refuse_unreachable(master.partition("/;")[0], *self.pipeline.urls())
            if handing_over.is_connect(connection) and local_path(self.pipeline.work_dir) is None:
                raise ConfigurationError(  # noqa: TRY301
                    f"a client of Spark Connect has no Hadoop to reach {self.pipeline.work_dir} with: give work_dir= a "
                    "path that this machine and the server share"
                )
        except ConfigurationError as error:
            raise AirflowFailException(str(error)) from error
        self._python_path()  # the chain is importable from now on
        code = build_py_files(cache_folder(), self.pipeline.chain.partition(":")[0])
        self.py_files = ",".join(filter(None, [self.py_files, str(code)]))

    def _stores(self) -> dict[str, str]:
        """The variables that a job finds its stores in. Secrets."""
        return dict(zip(("HOMING_STORE", "HOMING_DEAD_LETTER_STORE"), self.pipeline.urls(), strict=True))

    def _show_messages(self, context: Any) -> None:
        show_messages(self, context)

    def _get_hook(self) -> SparkSubmitHook:
        hook = super()._get_hook()
        # The only way to see the lines while the job runs.
        read = hook._process_spark_submit_log  # noqa: SLF001
        setattr(hook, read.__name__, lambda lines: read(self._watched(lines)))
        return hook

    def _watched(self, lines: Iterator[Any]) -> Iterator[Any]:
        """The job's output, in which it says where Spark's UI can be seen."""
        for line in lines:
            if found := _SPARK_UI.search(str(line)):
                self.spark_application = found["application"]
                try:
                    self._show_spark_ui(found["ui"])
                except Exception as error:  # noqa: BLE001 - a job that runs is not to be left alone for a link
                    self.log.warning("the link to Spark's UI was not stored: %s", error)
            yield line

    def _submit(self, context: Any) -> None:
        self._show_spark_ui = lambda ui: context["ti"].xcom_push(key=SparkLink().xcom_key, value=ui)
        try:
            super().execute(context)
        except AirflowException as error:
            if _SET_UP_WRONGLY in str(error):
                raise AirflowFailException(str(error)) from error
            raise

    def _is_small(self, size: int, connection: dict[str, Any]) -> bool:
        """Whether one process is done with so many messages before Spark would have started. Where Spark is elsewhere,
        there may be more to it than its speed: other packages, other networks."""
        return (
            size <= self.pipeline.spark_above
            and is_local(connection["master"])
            and local_path(self.pipeline.work_dir) is not None
            and not load_chain(self.pipeline.chain).takes_dataframes
        )

    def _done_alone(self, run_id: str) -> bool:
        """Works on the batch in one plain process, without Spark; whether that lived to see the end."""
        self.log.info("up to %d messages are worked on without Spark", self.pipeline.spark_above)
        try:
            with self._environment({}):
                self._run_client("--alone")
        except AirflowFailException:
            raise
        except AirflowException:
            with self.pipeline.open_batch(run_id) as batch:
                if self._killed or not batch.is_open(self._step()):
                    raise
            self.log.warning("it died: going on with Spark, whose workers may die, to find out of which message")
            return False
        return True

    def _step(self) -> str:
        """What the ledger calls this task's work."""
        return self.application_name.removesuffix(".py")

    def _run_client(self, *more: str) -> None:
        """Runs the application in a process of its own, without spark-submit, which has nowhere to submit it to."""
        command = [sys.executable, str(self.application), *(self.application_args or ()), *more]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as client:  # noqa: S603
            self._client = client
            try:
                for line in client.stdout or ():
                    self.log.info("%s", line.rstrip())
            except BaseException:
                client.terminate()  # or leaving the block would wait for its end
                raise
        if client.returncode == _WRONGLY:
            raise AirflowFailException(f"{self.application_name} was set up wrongly: the lines above say how")
        if client.returncode:
            raise AirflowException(f"{self.application_name} ended with {client.returncode}")

    def on_kill(self) -> None:
        self._killed = True
        if self._client is None or self._client.poll() is not None:
            super().on_kill()
        else:
            self._client.terminate()

    def _hold(self, context: Any, run_id: str) -> int:
        """Makes sure the run holds its batch; how many messages that is."""
        with self.pipeline.open_batch(run_id) as batch:
            return batch.reclaim((), self.pipeline.hold)

    def _arguments(self, run_id: str) -> list[str]:
        return ["--chain", self.pipeline.chain, "--run-id", run_id, "--lease", str(self.pipeline.hold)]

    @contextmanager
    def _environment(self, more: dict[str, str]) -> Iterator[None]:
        """The stores in this process's environment, which spark-submit inherits, and nowhere else: whatever the
        operator keeps in its fields is rendered, logged or shown."""
        added = {
            **self._stores(),
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

    def _step(self) -> str:
        return f"deliver.{self.flow}"


class ReplayOperator(PipelineJobOperator):
    """Runs the messages of these `ids` through the whole chain again, skipping what was delivered.

    Fails while any message still fails, so that the task's retries are the message's retries. With a `rate`, in
    messages per second, it runs in the task itself, one message after the other, instead of on Spark; unless handlers
    take DataFrames, which only Spark has: then Spark keeps to the rate.
    """

    application_name = "replay.py"
    template_fields = (*PipelineJobOperator.template_fields, "ids", "rate")

    def __init__(self, *, ids: Any, rate: Any = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.ids = ids
        self.rate = rate
        self._names: list[str] = []
        self._held: list[Head] = []
        self._begun = False
        self._replays = False

    def execute(self, context: Any) -> None:
        run_id, rate = self.pipeline.run_key(context), self._rate()
        self._names = read_names(self.ids)
        try:
            if not rate or load_chain(self.pipeline.chain).takes_dataframes:
                super().execute(context)
                return
            self._show_messages(context)
            by_hand.note_clear(self.pipeline, context)
            if self._hold(context, run_id):
                self._replay_here(run_id, rate)
        finally:
            # Also when some still fail: those that do not are acknowledged, and no settlement will see them again.
            self._count_completed(context, run_id)

    def _rate(self) -> float:
        """Messages per second; 0 for as many as can be. What no clock can keep fails the task before it holds any."""
        if self.rate in (None, "", "None"):
            return 0.0
        try:
            rate = float(self.rate)
        except (TypeError, ValueError):
            rate = math.nan
        if rate and not _SLOWEST <= rate < math.inf:
            raise AirflowFailException(f"rate is a number of messages per second from {_SLOWEST} up, not {self.rate!r}")
        return rate

    def _arguments(self, run_id: str) -> list[str]:
        rate = self._rate()
        return [*super()._arguments(run_id), *(["--rate", str(rate)] if rate else [])]

    def _show_messages(self, context: Any) -> None:
        show_messages(self, context, self._names)

    def _hold(self, context: Any, run_id: str) -> int:
        with open_pipeline_stores(*self.pipeline.urls()) as stores:
            if not by_hand.may_replay(stores.store, self.pipeline, context, self._names):
                raise AirflowFailException(
                    f"the replay of these {len(self._names)} messages was not approved: `select` selected others, or "
                    "somebody changed its XCom since"
                )
            self._begun = True
            batch = Batch(stores, run_id, self.pipeline.flows, chain=self.pipeline.name)
            size = batch.reclaim(self._names, self.pipeline.hold)
            self._held = batch.heads()
        metrics.count("replayed", size, pipeline=self.pipeline.name)
        return size

    def _count_completed(self, context: Any, run_id: str) -> None:
        # A store that is away is the job's trouble, not that of its metrics.
        with suppress(HomingError), self.pipeline.open_batch(run_id) as batch:
            left = {head.ref for head in batch.heads()}
            done = batch.completed([head for head in self._held if head.ref not in left])
            metrics.settled(done, self.pipeline.name)
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
            by_hand.finish(stores.store, context, ids, done=not left, outcome=outcome)

    def on_kill(self) -> None:
        if not self._replays:
            super().on_kill()
            return
        # Called while a message is in hand, by the handler of SIGTERM: this ends the replay, and fails no message.
        raise AirflowTaskTerminated("somebody ended the replay: what it had in hand stays where it was")

    def _replay_here(self, run_id: str, rate: float) -> None:
        with open_pipeline_stores(*self.pipeline.urls()) as stores, load_chain(self.pipeline.chain) as chain:
            batch = Batch(stores, run_id, self.pipeline.flows, chain=self.pipeline.name)
            self._replays = True
            try:
                tally = replay_here(stores, batch, chain, rate=rate, lease=self.pipeline.hold)
            finally:
                self._replays = False
            left = batch.acknowledge_complete()
        self.log.info("replayed at %s messages per second: %s", rate, dict(tally))
        if left:
            raise AirflowException(f"{left} messages still fail: they stay where they were")


def _application(name: str) -> Path:
    """Where the Spark applications lie: beside plugins/."""
    path = Path(homing.__file__).parents[2] / "spark_apps" / name
    if not path.is_file():
        raise ConfigurationError(
            f"the Spark application {path} is missing: install Homing from its repository, editable"
        )
    return path
