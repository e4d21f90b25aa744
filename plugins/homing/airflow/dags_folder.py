"""Airflow's DAG folder as a place for modules: every process of Airflow has it on sys.path, but for one."""

from __future__ import annotations

import sys

from airflow.sdk.configuration import conf
from airflow.sdk.definitions._internal.contextmanager import DagContext


def find_modules_beside_dags() -> None:
    """Has the modules beside DAG files found while one is being read: `airflow dags list --local` reads them without
    their folder on sys.path."""
    if DagContext.current_autoregister_module_name is None:
        return
    folder = conf.get("core", "dags_folder", fallback="")
    if folder and folder not in sys.path:
        sys.path.append(folder)
