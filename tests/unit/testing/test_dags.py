"""prepare_airflow, run_dag and books_of refuse what would touch an Airflow that is not the test's own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from homing.errors import ConfigurationError
from homing.testing import books_of, prepare_airflow, run_dag


def python(code: str, **environment: str) -> str:
    """What the last line says that this code prints, or fails with."""
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    return (done.stderr or done.stdout).strip().splitlines()[-1]


_PREPARE = """
import json, os
from homing.testing import prepare_airflow
home = prepare_airflow({folder!r})
print(json.dumps({{"home": str(home), "is_there": home.is_dir(),
                   "airflow": {{k: v for k, v in os.environ.items() if k.startswith("AIRFLOW_")}}}}))
"""


def test_the_tests_have_a_home_of_their_own_that_ends_with_them(tmp_path: Path) -> None:
    said = json.loads(python(_PREPARE.format(folder=str(tmp_path))))

    assert said["is_there"]
    assert said["airflow"]["AIRFLOW_HOME"] == said["home"]
    assert said["airflow"]["AIRFLOW__CORE__DAGS_FOLDER"] == str(tmp_path)
    assert not Path(said["home"]).exists()


def test_nothing_that_the_environment_says_of_another_airflow_reaches_the_tests(tmp_path: Path) -> None:
    production = {
        "AIRFLOW_CONN_SPARK_DEFAULT": "spark://production",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": "postgresql://production",
        "AIRFLOW__CORE__EXECUTOR": "CeleryExecutor",
        "AIRFLOW_VAR_TOKEN": "production",
    }
    said = json.loads(python(_PREPARE.format(folder=str(tmp_path)), **production))

    assert "production" not in json.dumps(said["airflow"])
    assert "AIRFLOW__CORE__EXECUTOR" not in said["airflow"]


def test_it_is_refused_once_airflow_is_imported(tmp_path: Path) -> None:
    said = python(f"import airflow.configuration\n{_PREPARE.format(folder=str(tmp_path))}")

    assert "ConfigurationError: Airflow is imported already" in said
    assert "at the top of conftest.py" in said


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"there is no folder .*/nowhere"):
        prepare_airflow(tmp_path / "nowhere")


@pytest.mark.parametrize("home", ["", "/opt/airflow"])
def test_a_dag_is_not_run_on_an_airflow_that_is_not_the_tests_own(home: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_HOME", home)

    with pytest.raises(ConfigurationError, match="no Airflow of a test's own: call prepare_airflow"):
        run_dag(None)  # type: ignore[arg-type]


def test_no_task_waits_for_its_next_try_and_the_dag_is_left_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.sdk import DAG
    from airflow.sdk.bases.operator import BaseOperator

    home = tmp_path / "homing-testing-home"
    home.mkdir()
    (home / "airflow.db").touch()
    monkeypatch.setenv("AIRFLOW_HOME", str(home))
    with DAG("waiting", schedule=None) as dag:
        task = BaseOperator(task_id="task", retries=3, retry_delay=60, retry_exponential_backoff=2)
    before = (task.retry_delay, task.retry_exponential_backoff, task.retry_policy)
    asked = []

    def test(dag: DAG, run_conf: object) -> str:
        asked.append((run_conf, task.retry_delay.total_seconds(), task.retry_exponential_backoff, task.retries))
        return "the run"

    monkeypatch.setattr(DAG, "test", test)

    assert run_dag(dag, {"limit": 1}) == "the run"
    assert asked == [({"limit": 1}, 0, 0, 3)]
    assert (task.retry_delay, task.retry_exponential_backoff, task.retry_policy) == before


def test_a_dag_without_a_pipeline_has_no_books() -> None:
    from airflow.sdk import DAG

    with pytest.raises(ConfigurationError, match="the DAG 'plain' has no books"):
        books_of(DAG("plain", schedule=None))
