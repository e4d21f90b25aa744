"""A scenario: a small pipeline of its own on a real Airflow, in which a process is killed at a place that is known."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from demo.airflow_api import AirflowApi, AirflowApiError, wait_until
from demo.stack import AirflowStack
from homing.delivery import AuditReport, PipelineStores, open_pipeline_stores, run_audit
from tests.airflow.matrix_dags.matrix_settings import flows

log = logging.getLogger(__name__)

#: So many that a chunk of the ledger (100) is full, and the next one begun, when a process is held at LATE.
MESSAGES = 120
LATE = 105
#: What can be in flight then: delivered, and not in the ledger yet.
IN_FLIGHT = 5
_PATIENCE = 1200.0
_ASKED = 60


@dataclass(frozen=True)
class Outcome:
    """What became of a scenario's messages: by the books, and by what its destinations have got."""

    books: AuditReport
    delivered: dict[str, Counter[int]]

    def twice(self, flow: str) -> int:
        """How many deliveries this destination got beyond one per message."""
        return sum(number - 1 for number in self.delivered[flow].values())


class PatientApi(AirflowApi):
    """Asks again when Airflow's own database was locked: many pipelines at once are much for SQLite."""

    def http(self, *args: Any, **options: Any) -> Any:
        for left in reversed(range(_ASKED)):
            try:
                return super().http(*args, **options)
            except AirflowApiError as error:
                if error.status != HTTPStatus.INTERNAL_SERVER_ERROR or not left:
                    raise
                log.info("asking again: %s", error)
            time.sleep(1)
        raise AssertionError


class Scenario:
    """Everything a scenario does with its pipeline. Each has an API client of its own: they run at the same time."""

    def __init__(self, name: str, stack: AirflowStack, home: Path, ended: threading.Event) -> None:
        self.name, self.flows, self.home = name, flows(name), home / name
        self.api = PatientApi(stack.url, *stack.credentials())
        self._ended = ended
        self._runs: dict[str, str] = {}
        self.file = stack.dags_folder / f"{name}.py"

    @contextmanager
    def stores(self) -> Iterator[PipelineStores]:
        url = f"sqlite:///{self.home}/store.db?store={self.name}"
        with open_pipeline_stores(url, f"{url}_dead") as stores:
            yield stores

    def store(self, first: int = 1) -> None:
        """Puts the numbers from `first` on into the store; 0 is poison until the scenario is mended."""
        with self.stores() as stores:
            stores.store.store_many(list(range(first, first + MESSAGES)))

    def mend(self) -> None:
        (self.home / "mended").touch()

    def start(self) -> None:
        for dag in (f"{self.name}_replay", self.name):
            self.api.wait_for_dag(dag, timeout=_PATIENCE)
            self.api.unpause(dag)

    # -- holding and killing -------------------------------------------------------------------------------------

    def hold(self, place: str) -> None:
        """Asks that the next process that comes by this place be held there."""
        (self.home / f"hold.{place}").touch()

    def held(self, place: str) -> int:
        """Waits for a process to be held at this place; its id."""
        path = self._wait(lambda: next(self.home.glob(f"held.{place}.*"), None), f"a process held at {place}", 0.2)
        return int(path.suffix[1:])

    def release(self, place: str, pid: int) -> None:
        """Lets a process that is held go on; one that has ended is forgotten."""
        (self.home / f"held.{place}.{pid}").unlink()

    def has_gone_on(self, flow: str = "left") -> None:
        """Waits until a second process delivers to this destination."""
        what = f"a second process to deliver to {flow}"
        self._wait(lambda: len(list(self.home.glob(f"{flow}.*"))) > 1 or None, what, 0.2)

    def end_the_lease(self) -> None:
        """Lets the time pass that the store waits for a sign of life of whoever holds its messages."""
        table = sa.table(f"homing_{self.name}", sa.column("time_next"), sa.column("lock_token"))
        engine = sa.create_engine(f"sqlite:///{self.home}/store.db")
        with engine.begin() as connection:
            connection.execute(sa.update(table).where(table.c.lock_token.is_not(None)).values(time_next=0))
        engine.dispose()

    def has_been_swept(self) -> None:
        """Waits until no message is held any more under a lease that has ended."""

        def swept() -> bool | None:
            with self.stores() as stores:
                return not stores.store.view.expired_batches(0) or None

        self._wait(swept, "what a run left behind to be released")

    # -- looking at it -------------------------------------------------------------------------------------------

    def run(self, *, replay: bool = False) -> str:
        """The id of the first run, or of the first replay."""
        dag = f"{self.name}_replay" if replay else self.name
        if dag not in self._runs:
            first = self._wait(lambda: next(iter(self.api.runs(dag)), None), f"a run of {dag}")
            self._runs[dag] = str(first["dag_run_id"])
        return self._runs[dag]

    def task(self, task_id: str, *, replay: bool = False) -> dict[str, Any]:
        """A task of the first run, or of the first replay."""
        dag = f"{self.name}_replay" if replay else self.name
        return self.api.task_instance(dag, self.run(replay=replay), task_id)

    def tries(self, task_id: str, *, replay: bool = False) -> int:
        return int(self.task(task_id, replay=replay)["try_number"])

    def wait_for(self, task_id: str, *states: str, replay: bool = False) -> None:
        """Waits until the task of the first run, or replay, is in one of these states."""
        self._wait(
            lambda: self.task(task_id, replay=replay)["state"] in states or None, f"{task_id} to be {'/'.join(states)}"
        )

    def stands_still(self, task_id: str) -> None:
        """Waits until this task of the first run has failed, or Airflow has given up the file and starts none."""

        def stopped() -> bool | None:
            failed = self.task(task_id)["state"] in ("failed", "up_for_retry")
            return failed or self.api.api("GET", f"/dags/{self.name}")["is_stale"] or None

        self._wait(stopped, f"{task_id} to fail, or never to be started")

    def books(self) -> AuditReport:
        with self.stores() as stores:
            return run_audit(stores, self.flows)

    def failures(self) -> int:
        with self.stores() as stores:
            return sum(stores.failures.count().values())

    def settled(self) -> Outcome:
        """Waits until no message is on its way and no replay runs any more."""
        self._wait(self._at_rest, "everything to be settled", every=4.0)
        return self.outcome()

    def _at_rest(self) -> bool | None:
        if self.books().total.waiting:
            return None
        states = {run["state"] for run in self.api.runs(f"{self.name}_replay")}
        return states.isdisjoint({"queued", "running"}) or None

    def outcome(self) -> Outcome:
        got = {
            flow: Counter(int(line) for path in self.home.glob(f"{flow}.*") for line in path.read_text().split())
            for flow in self.flows
        }
        return Outcome(self.books(), got)

    def _wait(self, check: Any, what: str, every: float = 2.0) -> Any:
        def patient_check() -> Any:
            assert not self._ended.is_set(), f"Airflow was stopped while {self.name} waited for {what}"
            try:
                return check()
            except AirflowApiError as error:  # many pipelines at once on a small machine: it answers late
                log.info("%s: %s", self.name, error)
                return None

        def describe() -> str:
            ids = [run["dag_run_id"] for run in self.api.runs(self.name)]
            states = {run_id: self.api.task_states(self.name, run_id) for run_id in ids}
            return f"{what} in {self.name}; {states}\n{self.books()}"

        found = wait_until(patient_check, timeout=_PATIENCE, what=describe, every=every)
        log.info("%s: no longer waits for %s", self.name, what)
        return found


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def parent(pid: int) -> int:
    return int(Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[1])


def spark_submit(worker: int) -> int:
    """The spark-submit that a Python worker of Spark belongs to."""
    pid = worker
    while b"org.apache.spark.deploy.SparkSubmit" not in Path("/proc", str(pid), "cmdline").read_bytes().split(b"\0"):
        pid = parent(pid)
        assert pid > 1, f"{worker} does not belong to a Spark job"
    return pid


def has_ended(pid: int) -> None:
    """Waits for the end of a process that is left on its own."""
    ends = time.monotonic() + 120
    with suppress(FileNotFoundError):
        while "Z" not in Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[0]:
            assert time.monotonic() < ends, f"process {pid} has not ended"
            time.sleep(0.2)
