"""One Airflow with our pipeline and with the same shape of stock operators, both listening."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.dags.arrivals import DESTINATIONS, arrived
from demo.airflow_api import wait_until
from demo.stack import AirflowStack

HERE = Path(__file__).resolve().parent
OURS, STOCK = "deliveries", "stock"


class BenchStack:
    """The DAGs of bench/dags on an Airflow below `folder`, over stores in `database`."""

    def __init__(self, folder: Path, database: str, batch_size: int) -> None:
        self.store_url = f"{database}?store=deliveries"
        self.arrivals = folder / "arrivals"
        self.signal = folder / "signal"
        self.arrivals.mkdir(exist_ok=True)
        self.airflow = AirflowStack(
            folder / "airflow",
            HERE / "dags",
            {
                "BENCH_STORE": self.store_url,
                "BENCH_DEAD_LETTERS": f"{database}?store=deliveries_dead",
                "BENCH_BATCH": str(batch_size),
                "BENCH_WORK": str(folder / "work"),
                "BENCH_ARRIVALS": str(self.arrivals),
                "BENCH_SIGNAL": str(self.signal),
                "BENCH_NOTHING": str(HERE / "nothing.py"),
                "AIRFLOW_CONN_FS_DEFAULT": "fs://",
            },
        )

    def listen(self) -> None:
        """Lets both DAGs run, and waits until both wait for something to do."""
        for dag in (OURS, STOCK):
            self.airflow.wait_for_dag(dag, timeout=120)
            self.airflow.unpause(dag)
        self.wait_until_idle()

    def wait_until_idle(self, timeout: float = 180.0) -> None:
        for dag in (OURS, STOCK):
            wait_until(
                lambda dag=dag: self.task(dag, "listen").get("state") == "deferred" or None,  # type: ignore[misc]
                timeout=timeout,
                what=lambda dag=dag: f"{dag} to listen; it is {self.describe(dag)}",  # type: ignore[misc]
            )

    def last_run(self, dag: str) -> str | None:
        runs = self.airflow.runs(dag)
        return str(runs[-1]["dag_run_id"]) if runs else None

    def task(self, dag: str, task: str, run: str | None = None) -> dict[str, Any]:
        """A task of that run, or of the latest; empty while there is none."""
        run = run or self.last_run(dag)
        return self.airflow.task_instance(dag, run, task) if run else {}

    def describe(self, dag: str) -> str:
        run = self.last_run(dag)
        return f"run {run}: {self.airflow.task_states(dag, run)}" if run else "without a run"

    def arrived(self) -> int:
        """How many deliveries were made, to all destinations."""
        return sum(arrived(self.arrivals, destination) for destination in DESTINATIONS)
