"""One real Airflow for all tests of this folder, with its four processes, on the worked example."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from demo.airflow_api import AirflowApi
from demo.pipeline import OrdersPipeline

#: DAGs of the tests, beside those of the worked example.
DAGS = Path(__file__).parent / "dags"


def bundle(name: str, path: Path | None = None) -> dict[str, Any]:
    kwargs = {"path": str(path)} if path else {}
    return {"name": name, "classpath": "airflow.dag_processing.bundles.local.LocalDagBundle", "kwargs": kwargs}


@pytest.fixture(scope="session")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OrdersPipeline]:
    orders = OrdersPipeline(tmp_path_factory.mktemp("orders"))
    orders.airflow.env |= {
        "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps([bundle("dags-folder"), bundle("tests", DAGS)]),
        # A file that has changed is read at once. All others are not read again every half minute, at seconds each.
        "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "300",
        "ARRIVALS_STORE": f"sqlite:///{orders.home}/arrivals.db?store=arrivals",
        "APPROVED_STORE": f"sqlite:///{orders.home}/approved.db?store=approved",
        "APPROVED_DEAD_LETTERS": f"sqlite:///{orders.home}/approved.db?store=approved_dead",
    }
    orders.airflow.users["reviewer"] = "admin"
    with orders.airflow:
        yield orders


@pytest.fixture
def reviewer(pipeline: OrdersPipeline) -> AirflowApi:
    """Another user of the same Airflow, who may do the same."""
    passwords = json.loads((pipeline.airflow.home / "passwords.json").read_text())
    return AirflowApi(pipeline.airflow.url, "reviewer", passwords["reviewer"])


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Ends it after the last of them: idle, it would take its part of the machine from the tests that follow."""
    if nextitem is None or nextitem.path.parent != item.path.parent:
        for value in getattr(item, "funcargs", {}).values():
            if isinstance(value, OrdersPipeline):
                value.airflow.stop()
