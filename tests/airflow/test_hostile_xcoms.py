"""XComs of ours that hostile people wrote, on a real scheduler: it lives, and the task that reads them says why."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from datetime import datetime
from typing import Any
from urllib.parse import quote

import pytest
from airflow.providers.standard.utils.skipmixin import XCOM_SKIPMIXIN_KEY

from demo.airflow_api import wait_until
from demo.pipeline import OrdersPipeline
from homing.airflow import links, xcoms

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(900)]

KEYS = (
    *(*sorted(xcoms.READ), xcoms.PLAN),
    *(link().xcom_key for link in (links.MessagesLink, links.SparkLink, links.ReplayLink)),
    XCOM_SKIPMIXIN_KEY,  # what Airflow's scheduler reads, of tasks that may skip others
)
#: What stands in Airflow's column for one task after the other, and the note that comes of it.
COLUMNS: dict[str, str | None] = {
    json.dumps({"store": "env:AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"}): None,
    json.dumps("all is well"): "all is well",
    json.dumps("a\0b" + "x" * 3_000): "ab" + "x" * 998,
    json.dumps("\ud800"): "?",
    json.dumps("y" * 50_000): None,
    json.dumps(["javascript:alert(1)"]): None,
    "[" * 4_000 + "]" * 4_000: None,
    '{"a":' * 1_500 + "1" + "}" * 1_500: None,
    "NaN": None,
    "-Infinity": None,
    "9" * 5_000: None,
    "1e999": None,
    "null": None,
    "{": None,
    json.dumps("'; drop table dag_run; --"): "'; drop table dag_run; --",
    json.dumps("<script>alert(1)</script>"): "<script>alert(1)</script>",
    json.dumps({"skipped": [f"after_{number}" for number in range(18)]}): None,
    json.dumps({"followed": []}): None,
}


def test_the_scheduler_goes_on_after_every_xcom_and_a_task_that_was_lied_to_says_so(pipeline: OrdersPipeline) -> None:
    airflow = pipeline.airflow
    airflow.wait_for_dag("hostile")
    scheduler = airflow.pid("scheduler")
    run_id = airflow.trigger("hostile")  # it waits: the DAG is paused
    for number in range(len(COLUMNS)):
        for task in (f"forged_{number}", f"approved_{number}"):
            path = f"/dags/hostile/dagRuns/{quote(run_id)}/taskInstances/{task}/xcomEntries"
            for key in KEYS:
                airflow.api("POST", path, {"key": key, "value": "forged"})
    with closing(sqlite3.connect(airflow.home / "airflow.db", timeout=60)) as metadata, metadata:
        for number, column in enumerate(COLUMNS):
            # Past Airflow's API, which takes less than its database.
            metadata.execute(
                "update xcom set value = ? where dag_id = 'hostile' and task_id in (?, ?)",
                (column, f"forged_{number}", f"approved_{number}"),
            )

    airflow.unpause("hostile")
    airflow.wait_for_run("hostile", run_id, {"failed"}, timeout=600)
    beats = [beat(pipeline)]
    for _ in range(2):
        beats.append(
            wait_until(
                lambda: later if (later := beat(pipeline)) > beats[-1] else None,
                timeout=120,
                what=lambda: f"the scheduler to say that it lives: {airflow.health()}",
            )
        )

    tasks = {task["task_id"]: task for task in airflow.task_instances("hostile", run_id)}
    notes = {number: tasks[f"forged_{number}"]["note"] for number in range(len(COLUMNS))}
    assert notes == dict(enumerate(COLUMNS.values()))
    assert {tasks[f"after_{number}"]["state"] for number in range(len(COLUMNS))} == {"success"}
    assert (airflow.pid("scheduler"), airflow.health()["scheduler"]["status"]) == (scheduler, "healthy")
    assert tasks["replay"]["state"] == "failed"
    # The task's state may be known before its log is written to the end.
    said = lambda: airflow.task_log("hostile", run_id, "replay")  # noqa: E731
    wait_until(lambda: "is not a list of message names" in said() or None, timeout=60, what=said)


def beat(pipeline: OrdersPipeline) -> datetime:
    health: dict[str, Any] = pipeline.airflow.health()
    return datetime.fromisoformat(health["scheduler"]["latest_scheduler_heartbeat"])
