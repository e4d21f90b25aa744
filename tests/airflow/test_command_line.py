"""Airflow's own commands that run no scheduler, on a pipeline whose chain lies beside its DAG file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.airflow

CHAIN = """
from homing import HandlerChain, destination

@destination
def crm(order): ...

chain = HandlerChain("shop", source_flow=[], destinations_flow=[crm])
"""
DAG_FILE = """
from homing.airflow import delivery_dag

delivery_dag("shop", chain="beside_chain:chain", store="sqlite:///{0}/x.db?store=shop",
             dead_letter_store="sqlite:///{0}/x.db?store=shop_dead")
"""


def airflow(home: Path, *arguments: str) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW__")}
    environment |= {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    }
    command = [sys.executable, "-m", "airflow", *arguments]
    done = subprocess.run(command, env=environment, cwd=home, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("airflow")
    (home / "dags").mkdir()
    (home / "dags" / "beside_chain.py").write_text(CHAIN)
    (home / "dags" / "shop.py").write_text(DAG_FILE.format(home))
    airflow(home, "db", "migrate")
    return home


def test_dags_list_local_finds_the_chain_beside_the_dag_file(home: Path) -> None:
    said = airflow(home, "dags", "list", "--local", "-o", "plain")

    assert "shop_replay" in said
    assert "Failed to load" not in said


def test_dags_test_on_an_empty_store_ends_with_a_sentence(home: Path) -> None:
    said = airflow(home, "dags", "test", "shop")

    assert "nothing is due in store shop, and a test run does not wait: store a message, and test the DAG again" in said
