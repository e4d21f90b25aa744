"""What depends on Airflow's own database, on SQLite: nothing is lost, and the books balance in the end.

Everything else that can be killed is in test_kill_matrix.py, on PostgreSQL.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from demo.airflow_api import wait_until
from demo.orders import make_orders
from demo.pipeline import OrdersPipeline
from homing import open_store
from homing.airflow import PipelineConfig

pytestmark = [pytest.mark.airflow, pytest.mark.chaos, pytest.mark.timeout(1800)]

#: So many orders are worked on by Spark, and not by a plain process.
FOR_SPARK = PipelineConfig.spark_above + 50


def spark_job(pipeline: OrdersPipeline, application: str) -> int | None:
    """The process id of a running Spark driver of ours."""
    for pid in pipeline.airflow.processes():
        try:
            command = Path("/proc", str(pid), "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"org.apache.spark.deploy.SparkSubmit" in command and any(
            part.endswith(application.encode()) for part in command
        ):
            return pid
    return None


def wait_for_job(pipeline: OrdersPipeline, application: str) -> int:
    return wait_until(
        lambda: spark_job(pipeline, application), timeout=240, what=lambda: f"a Spark job of {application}", every=0.1
    )


def store_orders(pipeline: OrdersPipeline, number: int, **changed: object) -> list[str]:
    with pipeline.stores() as stores:
        return stores.store.store_many([{**order, "paid": True, **changed} for order in make_orders(number)])


def outcomes(pipeline: OrdersPipeline, ids: list[str]) -> set[tuple[str, str]]:
    """(flow, state) found in the ledger for these messages."""
    with pipeline.stores() as stores:
        found = stores.ledger.entries(ids).values()
        return {(flow, entry.state) for flows in found for flow, entry in flows.items()}


def listening_run(pipeline: OrdersPipeline) -> str | None:
    """The run of `orders` that waits in the triggerer, if there is one."""
    for run in pipeline.airflow.runs("orders"):
        if run["state"] == "running":
            states = pipeline.airflow.task_states("orders", run["dag_run_id"])
            return run["dag_run_id"] if states.get("listen") == "deferred" else None
    return None


def test_messages_stored_while_the_triggerer_is_dead_are_delivered_once_it_is_back(pipeline: OrdersPipeline) -> None:
    pipeline.unpause()
    wait_until(lambda: listening_run(pipeline), timeout=300, what=lambda: "a run that listens")
    pipeline.airflow.kill("triggerer")
    ids = store_orders(pipeline, 20, country="US", quantity=1)
    pipeline.airflow.restart("triggerer")

    books = pipeline.wait_until_settled(600)

    assert books.balanced, str(books)
    assert outcomes(pipeline, ids) == {("lake", "delivered"), ("crm", "filtered")}


def test_a_scheduler_killed_in_the_middle_of_a_run_loses_nothing(pipeline: OrdersPipeline) -> None:
    pipeline.unpause()
    ids = store_orders(pipeline, FOR_SPARK, country="US", quantity=1)
    wait_for_job(pipeline, "process.py")
    pipeline.airflow.kill("scheduler")
    pipeline.airflow.restart("scheduler")

    books = pipeline.wait_until_settled(600)

    assert books.balanced, str(books)
    assert outcomes(pipeline, ids) == {("lake", "delivered"), ("crm", "filtered")}


def test_a_running_task_that_is_cleared_dead_letters_nothing(pipeline: OrdersPipeline) -> None:
    pipeline.unpause()
    before = pipeline.books().total.dead_lettered
    ids = store_orders(pipeline, FOR_SPARK, country="US", quantity=1)
    wait_for_job(pipeline, "process.py")
    run_id = next(run["dag_run_id"] for run in pipeline.airflow.runs("orders") if run["state"] == "running")
    pipeline.airflow.clear("orders", run_id, ["process"], include_downstream=True)

    books = pipeline.wait_until_settled(600)

    assert books.balanced, str(books)
    assert books.total.dead_lettered == before
    assert outcomes(pipeline, ids) == {("lake", "delivered"), ("crm", "filtered")}


def test_event_driven_runs_drain_a_store_through_a_burst_a_pause_and_a_killed_triggerer(
    pipeline: OrdersPipeline,
) -> None:
    airflow, stored = pipeline.airflow, 0
    airflow.wait_for_dag("arrivals")

    def store_some(number: int) -> int:
        with open_store(airflow.env["ARRIVALS_STORE"]) as store:
            store.store_many(list(range(number)))
        return number

    def drained() -> bool | None:
        with open_store(airflow.env["ARRIVALS_STORE"]) as store:
            return store.count()["acknowledged"] == stored or None

    stored += store_some(1)
    airflow.unpause("arrivals")
    wait_until(drained, timeout=120, what=lambda: "the first message to be settled")
    airflow.unpause("arrivals", paused=True)
    stored += store_some(10)  # more than a run claims, and their hints come while nobody listens
    time.sleep(8)  # longer than the interval of the hints
    assert not drained()
    airflow.kill("triggerer")
    stored += store_some(5)
    airflow.unpause("arrivals")
    airflow.restart("triggerer")

    wait_until(drained, timeout=240, what=lambda: "everything to be settled after the triggerer came back")

    airflow.unpause("arrivals", paused=True)
