"""One real Airflow for all tests of this folder, with its four processes, on the worked example."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from demo.airflow_api import AirflowApi
from demo.pipeline import OrdersPipeline

#: What `homing new` makes for the tests.
PROJECT = "web_shop"
#: DAGs of the tests, beside those of the worked example.
DAGS = Path(__file__).parent / "dags"


def bundle(name: str, path: Path | None = None) -> dict[str, Any]:
    kwargs = {"path": str(path)} if path else {}
    return {"name": name, "classpath": "airflow.dag_processing.bundles.local.LocalDagBundle", "kwargs": kwargs}


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project that `homing new` has just made."""
    folder = tmp_path_factory.mktemp("new")
    command = [str(Path(sys.executable).parent / "homing"), "new", PROJECT]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=120)
    return folder / PROJECT


def connections_of(project: Path) -> dict[str, str]:
    """What a new project's env/development says of its stores and its destination."""
    script = ". env/development && env -0"
    said = subprocess.run(["bash", "-c", script], cwd=project, check=True, capture_output=True, text=True, timeout=60)
    variables = dict(line.split("=", 1) for line in said.stdout.split("\0") if "=" in line)
    ours = (f"AIRFLOW_CONN_{PROJECT.upper()}", PROJECT.upper(), "HOMING_")
    return {name: value for name, value in variables.items() if name.startswith(ours) and name not in os.environ}


@pytest.fixture(scope="session")
def pipeline(tmp_path_factory: pytest.TempPathFactory, project: Path) -> Iterator[OrdersPipeline]:
    orders = OrdersPipeline(tmp_path_factory.mktemp("orders"))
    bundles = [bundle("dags-folder"), bundle("tests", DAGS), bundle("new", project / "dags")]
    orders.airflow.env |= {
        # A file that has changed is read at once. All others are not read again every half minute, at seconds each.
        "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "300",
        **{name: value for name, value in connections_of(project).items() if not name.startswith("HOMING_")},
        "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps(bundles),
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
