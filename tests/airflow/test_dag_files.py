"""Importing the DAG files is light, and what is wrong in them is said clearly."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]

SECONDS = 2.0
_IMPORT = """
import sys, time
import airflow.dag_processing.processor, croniter  # what the DAG processor has loaded before any DAG file
opened = []
sys.addaudithook(lambda event, args: opened.append(event)
    if event in ("sqlite3.connect", "socket.connect", "subprocess.Popen", "os.exec", "os.posix_spawn") else None)
began = time.process_time()
import orders, homing_reconcile
took = time.process_time() - began
assert "pyspark.sql" not in sys.modules, "a DAG file must not load Spark"
print("took:", took)
print("opened:", opened)
"""


def run_python(code: str, folder: Path, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "AIRFLOW_HOME": str(tmp_path), "PYTHONPATH": str(folder)}
    if "PYTHONPATH" in os.environ:
        environment["PYTHONPATH"] += os.pathsep + os.environ["PYTHONPATH"]
    command = [sys.executable, "-W", "ignore", "-c", code]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What there is to say after the DAG files were imported in a process of their own."""
    done = run_python(_IMPORT, REPOSITORY / "dags", tmp_path_factory.mktemp("import"))
    assert done.returncode == 0, done.stderr
    return dict(line.split(": ") for line in done.stdout.splitlines() if line.startswith(("took: ", "opened: ")))


def test_importing_the_worked_example_opens_no_database_no_connection_and_no_spark(imported: dict[str, str]) -> None:
    assert imported["opened"] == "[]"


def test_importing_the_worked_example_takes_less_than_two_seconds(imported: dict[str, str]) -> None:
    # Of the processor's time, and beyond what the DAG processor has loaded anyway: whoever else is busy, it holds.
    assert float(imported["took"]) < SECONDS


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ('chain="orders_chian:chain"', "module 'orders_chian' of the chain"),
        ('chain="orders_chain:chian"', "did you mean"),
        ('chain="orders_chain"', "module:attribute"),
        ('chain="orders_chain:chain", store="sqllite:///x.db"', "did you mean sqlite://"),
        ('chain="orders_chain:chain", store="sqlite:///y.db"', "name of its own"),
        ('chain="orders_chain:chain", store="orders.db/x"', "invalid name of a store"),
        ('chain="orders_chain:chain", store=None', "named by a URL"),
        ('chain="orders_chain:chain", store="sqlite:///x.db?stroe=orders"', "stroe"),
        ('chain="orders_chain:chain", store="sqlite://"', "in memory"),
        ('chain="orders_chain:chain", max_retries=-1', "max_retries"),
        ('chain="orders_chain:chain", polling_interval=0', "polling_interval"),
        ('chain="orders_chain:chain", batch_size=0', "batch_size"),
        ('chain="orders_chain:chain", lease=1', "lease"),
        ('chain="orders_chain:chain", schedule="@daily"', "sets schedule itself"),
        ('chain="orders_chain:chain", retry_interval=0', "interval"),
        ('chain="orders_chain:chain", retry=RetryPolicy(2), max_retries=2', "not both"),
        ('chain="orders_chain:chain", retry=RetryPolicy(2, never=(OSError,))', "cannot tell OSError"),
    ],
)
def test_what_is_wrong_in_a_dag_file_is_said_when_it_is_imported(tmp_path: Path, arguments: str, error: str) -> None:
    given = f"dict({arguments})"
    code = f"""
from homing.airflow import delivery_dag
from homing.errors import ConfigurationError
from homing.retry import RetryPolicy
try:
    delivery_dag("x", **{{"store": "sqlite:///x.db", "dead_letter_store": "sqlite:///y.db", **{given}}})
except ConfigurationError as error:
    print(type(error).__name__, error)
"""

    done = run_python(code, REPOSITORY / "dags", tmp_path)

    assert error in done.stdout, done.stdout + done.stderr


def test_retry_policy_becomes_the_retries_of_the_replay(tmp_path: Path) -> None:
    code = """
from homing.airflow import delivery_dag
from homing.retry import RetryPolicy
policy = RetryPolicy.exponential(7, 5, max_interval=60)
stores = {"store": "sqlite:///x.db?store=orders", "dead_letter_store": "sqlite:///x.db?store=dead"}
for dag in delivery_dag("x", chain="orders_chain:chain", retry=policy, **stores):
    for task in dag.tasks:
        if task.task_id == "replay":
            delays = task.retry_delay.total_seconds(), task.max_retry_delay.total_seconds()
            print(task.retries, *delays, task.retry_exponential_backoff)
"""

    done = run_python(code, REPOSITORY / "dags", tmp_path)

    assert set(done.stdout.splitlines()) == {"7 5.0 60.0 2.0"}, done.stdout + done.stderr
