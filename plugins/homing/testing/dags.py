"""The DAGs of a pipeline in a test: on an Airflow of the test's own, in one process, without a scheduler."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from homing.delivery import AuditReport, open_pipeline_stores, run_audit
from homing.errors import ConfigurationError
from homing.extras import needs

if TYPE_CHECKING:
    from airflow.models.dagrun import DagRun
    from airflow.sdk import DAG

    from homing.airflow import PipelineConfig

_HOME, _PREFIX = "AIRFLOW_HOME", "homing-testing-"


def prepare_airflow(dags_folder: Path | str) -> Path:
    """Gives the tests of this process, and what they start, an Airflow of their own; returns its home.

    To be called in conftest.py, before anything imports Airflow: raises ConfigurationError after that, and for a folder
    that is not there. The home is a new folder, removed when the process ends. All that the environment says of another
    Airflow is taken out, connections and variables included: set those that a test needs. Imports nothing of Airflow.
    """
    folder = Path(dags_folder).absolute()
    if not folder.is_dir():
        raise ConfigurationError(f"there is no folder {folder} for Airflow to find DAGs in")
    if "airflow.configuration" in sys.modules:
        raise ConfigurationError(
            f"Airflow is imported already, with {os.environ.get(_HOME, '~/airflow')} as its home: call "
            "prepare_airflow at the top of conftest.py, before the first import of Airflow or of a DAG"
        )
    home = Path(tempfile.mkdtemp(prefix=_PREFIX))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    for name in [name for name in os.environ if name.startswith("AIRFLOW_")]:
        del os.environ[name]
    os.environ |= {
        _HOME: str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(folder),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
    }
    return home


def run_dag(dag: DAG, conf: Mapping[str, Any] | None = None) -> DagRun:
    """Runs a DAG once, by Airflow's own `dag.test()`, and returns the run. What is tried again is tried at once.

    `conf` has the run's parameters. Real stores and real destinations are used; up to `spark_above` messages, no Spark.
    What fails waits for the replay: run that DAG too. Makes Airflow's tables first, which takes some seconds. Raises
    ConfigurationError where `prepare_airflow` was not called: the Airflow would be your own.
    """
    home = Path(os.environ.get(_HOME, "~/airflow"))
    if not home.name.startswith(_PREFIX):
        raise ConfigurationError(
            f"{home} is no Airflow of a test's own: call prepare_airflow(dags_folder) at the top of conftest.py"
        )
    with needs("run_dag", "airflow", "airflow"):
        from airflow.utils.db import initdb
    if not (home / "airflow.db").exists():
        initdb()
    with _without_waiting(dag):
        return dag.test(run_conf=None if conf is None else dict(conf))


def books_of(dag: DAG) -> AuditReport:
    """What became of every message in the store of this DAG's pipeline: in all, by destination and by batch.

    Raises ConfigurationError for a DAG that delivery_dag did not make.
    """
    pipeline = _pipeline_of(dag)
    with open_pipeline_stores(*pipeline.urls()) as stores:
        return run_audit(stores, pipeline.flows)


def _pipeline_of(dag: DAG) -> PipelineConfig:
    from homing.airflow import PipelineConfig

    pipelines = [getattr(task, "pipeline", None) for task in dag.tasks]
    found = next((each for each in pipelines if isinstance(each, PipelineConfig)), None)
    if found is None:
        raise ConfigurationError(f"the DAG {dag.dag_id!r} has no books: only those that delivery_dag makes have")
    return found


@contextmanager
def _without_waiting(dag: DAG) -> Iterator[None]:
    """While the block lasts, no task waits for its next try."""
    names = ("retry_delay", "retry_exponential_backoff", "max_retry_delay", "retry_policy")
    before = [(task, {name: getattr(task, name) for name in names}) for task in dag.tasks]
    for task in dag.tasks:
        task.retry_delay, task.retry_exponential_backoff, task.retry_policy = timedelta(0), 0, None
    try:
        yield
    finally:
        for task, delays in before:
            for name, value in delays.items():
                setattr(task, name, value)
