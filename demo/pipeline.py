"""The worked example on a stack of its own: where its stores and destinations lie, and how it is watched."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from demo.ports import free_port
from demo.stack import AirflowStack
from homing.delivery import AuditReport, PipelineStores, open_pipeline_stores, run_audit

REPOSITORY = Path(__file__).resolve().parent.parent
FLOWS = ("lake", "crm")


def _connection(url: str) -> str:
    """An Airflow connection to the store of this URL, as Airflow reads it from the environment."""
    return json.dumps({"conn_type": "homing", "password": url})


class OrdersPipeline:
    """The DAGs of dags/ on an Airflow below `home`, with SQLite stores and local Spark."""

    def __init__(self, home: Path, *, api_port: int | None = None) -> None:
        self.home = home.absolute()
        self.crm_port = free_port()
        self.store_url = f"sqlite:///{self.home}/orders.db?store=orders"
        self.dead_letter_url = f"sqlite:///{self.home}/orders.db?store=orders_dead"
        self.airflow = AirflowStack(
            self.home / "airflow",
            REPOSITORY / "dags",
            {
                "AIRFLOW_CONN_ORDERS_STORE": _connection(self.store_url),
                "AIRFLOW_CONN_ORDERS_DEAD_LETTERS": _connection(self.dead_letter_url),
                "ORDERS_LAKE": str(self.home / "lake"),
                "ORDERS_CRM": f"http://127.0.0.1:{self.crm_port}/orders",
            },
            api_port=api_port,
        )

    @contextmanager
    def stores(self) -> Iterator[PipelineStores]:
        with open_pipeline_stores(self.store_url, self.dead_letter_url) as stores:
            yield stores

    def books(self) -> AuditReport:
        with self.stores() as stores:
            return run_audit(stores, FLOWS)

    def start_crm(self) -> None:
        """Brings the CRM up. It belongs to the stack, and ends with it."""
        subprocess.Popen(
            [sys.executable, "-m", "demo.crm", str(self.crm_port), str(self.home / "crm")],
            cwd=REPOSITORY,
            env=self.airflow.environment(),
            start_new_session=True,
        )

    def unpause(self) -> None:
        for dag in ("orders", "orders_replay"):
            self.airflow.wait_for_dag(dag)
            self.airflow.unpause(dag)

    def replays(self) -> dict[str, str]:
        """State by run id, of the replays so far."""
        return {run["dag_run_id"]: run["state"] for run in self.airflow.runs("orders_replay")}

    def wait_until_settled(self, timeout: float, show: Callable[[str], None] = lambda _: None) -> AuditReport:
        """Waits until nothing is on its way any more and every replay has ended; shows each change."""
        deadline, shown = time.monotonic() + timeout, ""
        while True:
            books, replays = self.books(), self.replays()
            line = self._progress(books)
            if line != shown:
                shown = line
                show(line)
            if books.total.waiting == 0 and not set(replays.values()) & {"queued", "running"}:
                return books
            if time.monotonic() > deadline:
                raise TimeoutError(f"not settled after {timeout:.0f} s; replays {replays}\n{books}")
            time.sleep(2)

    def _progress(self, books: AuditReport) -> str:
        total = books.total
        running = ", ".join(self._running()) or "nothing"
        delivered = " ".join(f"{name} {column.delivered}" for name, column in books.destinations.items())
        return (
            f"delivered: {delivered}; dropped {total.dropped}, dead {total.dead_lettered}, "
            f"waiting {total.waiting}; running: {running}"
        )

    def _running(self) -> Iterator[str]:
        for dag in ("orders", "orders_replay"):
            for run in self.airflow.runs(dag):
                if run["state"] == "running":
                    states = self.airflow.task_states(dag, run["dag_run_id"]).items()
                    busy = [f"{dag}.{task}" for task, state in states if state in ("running", "up_for_retry")]
                    yield from busy
