"""The replay DAG from its form to its end, under `airflow dags test`: selected, approved, replayed, settled."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import homing
from homing.delivery import open_pipeline_stores, run_audit
from homing.delivery.dead_letter import dead_letter_messages

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(600)]

CHAIN = """
from homing import HandlerChain, destination

@destination
def crm(content):
    return 201

chain = HandlerChain("shop", destinations_flow=[crm])
"""
DAGS = """
from homing.airflow import delivery_dag

delivery_dag("shop", chain="form_chain:chain", store="env:SHOP", dead_letter_store="env:SHOP_DEAD",
             approve_replays_above=5, max_retries=0)
"""


def test_a_replay_by_error_group_and_rate_delivers_what_it_selected(tmp_path: Path) -> None:
    dags = tmp_path / "dags"
    dags.mkdir()
    (dags / "form_chain.py").write_text(CHAIN)
    (dags / "shop.py").write_text(DAGS)
    urls = f"sqlite:///{tmp_path}/x.db?store=shop", f"sqlite:///{tmp_path}/x.db?store=shop_dead"
    environment = {
        **os.environ,
        "AIRFLOW_HOME": str(tmp_path),
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
        "SHOP": urls[0],
        "SHOP_DEAD": urls[1],
        "PYTHONPATH": str(Path(homing.__path__[0]).parent),
    }
    with open_pipeline_stores(*urls) as stores:
        ids = stores.store.store_many([1, 2, 3])
        assert dead_letter_messages(stores, ids, "not today") == set(ids)

    def airflow(*argv: str) -> str:
        command = [str(Path(sys.executable).parent / "airflow"), *argv]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    airflow("db", "migrate")
    form = {"error_group": "homing dead-letter: GivenUp", "rate": 100}
    said = airflow("dags", "test", "shop_replay", "-c", json.dumps(form))

    assert "homing dead-letter: GivenUp: 3 messages, tries the whole chain again" in said
    assert "3 messages need no approval" in said
    for url in urls:
        assert url not in said
    with open_pipeline_stores(*urls) as stores:
        books = run_audit(stores, ["crm"])
    assert (books.total.delivered, books.total.dead_lettered, books.balanced) == (3, 0, True)
