"""Secrets and payloads are shown nowhere: a full run with marks in everything, and a search for them afterwards.

Where they may be is where they belong: in the stores, their ledgers and dead letters, in Airflow's encrypted table of
connections, and in the environment of the jobs that open the stores. What handlers log in with is not in stores either.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import sqlalchemy as sa

from demo.airflow_api import wait_until
from demo.stack import AirflowStack
from homing import Message, open_store
from homing.delivery import AuditReport, open_pipeline_stores, run_audit
from tests.airflow.scan import Mark, Processes, Scan
from tests.servers import PostgreSQL, launch

DAGS = Path(__file__).parent / "scan_dags"
FLOWS = ("crm", "partner", "warehouse")
PIPELINES = ("spark", "plain")
WHAT = ("", "", "", "drop", "fail early", "fail late", "constraint", "twice", "misfit", "misfit login")
MARKS = {name: Mark(name) for name in ("password", "content", "header", "api", "token", "late", "later")}
#: Of the connections that handlers declare. Not even the stores may have them.
LOGINS = ("api", "token", "late", "later")
PLANTED = Mark("planted", between="-")
#: Who may have the stores in its environment: what runs the job, and what that starts.
JOB = re.compile(r"spark/applications/homing_\w+\.py|bin/spark-submit|org\.apache\.spark")

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(1800)]


@dataclass
class Run:
    """What is left of a run that is over."""

    home: Path
    airflow: AirflowStack
    server: PostgreSQL
    processes: Processes
    books: dict[str, AuditReport]
    #: (table and column, mark) of what the stores' database had of connections.
    kept: list[tuple[str, str]]
    #: What became of the pipeline whose connection came late, before it came and at the end.
    late: tuple[dict[str, int], dict[str, int]]

    def left(self, name: str) -> set[str]:
        """Digests of what handlers logged in with."""
        return set((self.home / "left" / name).read_text().splitlines())

    def shown(self, scan: Scan) -> list[tuple[str, str]]:
        """(where, mark): in all logs, all tables of Airflow, the event logs, the database server's log."""
        folders = self.airflow.home / "logs", self.airflow.home / "logs-stack", self.home / "events", self.home / "log"
        return [*scan.files(*folders), *scan.tables(f"sqlite:///{self.airflow.home}/airflow.db")]


def urls(server: PostgreSQL, name: str) -> tuple[str, str]:
    where = f"postgresql+psycopg://postgres:{quote(str(MARKS['password']), safe='')}@127.0.0.1:{server.port}/homing"
    return f"{where}?store={name}", f"{where}?store={name}_dead"


def order(name: str, number: int, what: str) -> Message:
    card = f"{MARKS['content']} {name} {number}"
    content: Any = {"card": card, "number": "none" if what == "misfit" else number, "what": what}
    return Message(f"order-{number}", content, headers={"token": str(MARKS["header"])}, subject=card)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    home = tmp_path_factory.mktemp("marks")
    # Terse: a server writes the values of a refused row into its own log otherwise, whoever sends it.
    server = launch(PostgreSQL(["log_error_verbosity=terse"]))
    assert isinstance(server, PostgreSQL)
    try:
        yield from _running(home, server)
    finally:
        server.remove()


def _running(home: Path, server: PostgreSQL) -> Iterator[Run]:
    plain = f"postgresql+psycopg://postgres@127.0.0.1:{server.port}/homing"
    partner = f"{plain}?store=partner&columns=card"
    (home / "events").mkdir()
    (home / "left").mkdir()
    with open_store(partner) as store:
        store.store("to make its table", headers={"card": "none"})
    _execute(server, "alter table homing_partner add constraint honest check (card not like '%% 6')")
    _execute(server, "create table warehouse (card text unique)")
    airflow = AirflowStack(
        home / "airflow",
        DAGS,
        {
            "SCAN_PARTNER": partner,
            "SCAN_WAREHOUSE": f"postgresql://postgres@127.0.0.1:{server.port}/homing",
            "SCAN_EVENTS": str(home / "events"),
            "SCAN_PLANTED": str(PLANTED),
            "SCAN_LEFT": str(home / "left"),
            "SCAN_LATE": f"sqlite:///{home}/late.db",
        },
    )
    with suppress(sa.exc.DBAPIError):
        _execute(server, f"select '{PLANTED}'::int")
    with airflow, Processes(Scan([*MARKS.values(), PLANTED])) as processes:
        _give(airflow, "marked_api", MARKS["api"])
        late = _delivered_late(airflow, home)
        books = {name: _delivered(airflow, server, f"marked_{name}") for name in PIPELINES}
        airflow.wait_for_dag("leak")
        airflow.unpause("leak")
        airflow.wait_for_run("leak", airflow.trigger("leak"), timeout=300)
    kept = list(Scan(MARKS[name] for name in LOGINS).tables(server.url))
    server.stop()
    (home / "log").mkdir()
    (home / "log" / "postgresql").write_bytes((server.folder / "log").read_bytes())
    yield Run(home, airflow, server, processes, books, kept, late)


def _give(airflow: AirflowStack, conn_id: str, password: Mark, method: str = "POST") -> None:
    extra = json.dumps({"token": str(MARKS["token"]), "region": "eu"})
    about = {"connection_id": conn_id, "conn_type": "http", "host": "crm", "password": str(password), "extra": extra}
    airflow.api(method, "/connections" + ("" if method == "POST" else f"/{conn_id}"), about)


def _delivered_late(airflow: AirflowStack, home: Path) -> tuple[dict[str, int], dict[str, int]]:
    """A pipeline whose destination declares a connection that nobody has made; then somebody does, and changes it."""
    urls = f"sqlite:///{home}/late.db?store=late", f"sqlite:///{home}/late.db?store=late_dead"
    logs = airflow.home / "logs" / "dag_id=marked_late"
    told = lambda: any("no connection" in log.read_text() for log in logs.glob("*/task_id=deliver*/*.log")) or None  # noqa: E731
    with open_store(urls[0]) as store, open_store(urls[1]) as dead:

        def delivered(number: int) -> bool | None:
            return True if store.count()["acknowledged"] == number else None

        store.store({"n": 1})
        airflow.wait_for_dag("marked_late")
        airflow.unpause("marked_late")
        wait_until(told, timeout=600, what=lambda: "the error of the missing connection", every=1)
        before = {"waiting": store.count()["acknowledged"], "dead": sum(dead.count().values())}
        _give(airflow, "late_api", MARKS["late"])
        wait_until(lambda: delivered(1), timeout=600, what=lambda: "the first message to be delivered", every=1)
        _give(airflow, "late_api", MARKS["later"], "PATCH")
        store.store({"n": 2})
        wait_until(lambda: delivered(2), timeout=600, what=lambda: "the second message to be delivered", every=1)
        airflow.unpause("marked_late", paused=True)
        return before, {"delivered": store.count()["acknowledged"], "dead": sum(dead.count().values())}


def _execute(server: PostgreSQL, statement: str) -> None:
    engine = sa.create_engine(server.url)
    with engine.begin() as connection:
        connection.exec_driver_sql(statement)
    engine.dispose()


def _delivered(airflow: AirflowStack, server: PostgreSQL, name: str) -> AuditReport:
    """The books of a pipeline, after a batch went through it and what failed was replayed and dead-lettered."""
    stores = urls(server, name)
    for conn_id, url in zip((name, f"{name}_dead"), stores, strict=True):
        # Not in the environment, where every process of Airflow would have it.
        airflow.api("POST", "/connections", {"connection_id": conn_id, "conn_type": "homing", "password": url})
    with open_pipeline_stores(*stores) as opened:
        opened.store.store_many([order(name, number, what) for number, what in enumerate(WHAT)])
        opened.failures.count()  # which makes its table
    # For a while a column of the application's own refuses what failed: then the settlement itself meets an error of
    # the database, whose DETAIL has the value.
    failures, card = f"alter table homing_{name}_failures", MARKS["content"].halves[0]
    column = f"card text generated always as (substring(message from '{card}')) stored"
    _execute(server, f"{failures} add column {column}, add constraint calm unique (card)")
    for dag in (name, f"{name}_replay"):
        airflow.wait_for_dag(dag)
        airflow.unpause(dag)

    logs = airflow.home / "logs" / f"dag_id={name}"
    refused = lambda: any("calm" in log.read_text() for log in logs.glob("*/task_id=settle/*.log")) or None  # noqa: E731
    wait_until(refused, timeout=900, what=lambda: f"the settlement of {name} to be refused", every=1)
    _execute(server, f"{failures} drop column card")

    def settled() -> AuditReport | None:
        with open_pipeline_stores(*stores) as opened:
            books = run_audit(opened, FLOWS)
        replays = [run["state"] for run in airflow.runs(f"{name}_replay")]
        return books if books.total.waiting == 0 and replays and not {"queued", "running"} & {*replays} else None

    books = wait_until(settled, timeout=900, what=lambda: f"{name} to be settled", every=2)
    # By hand and at a rate: in the process of the task itself.
    again = airflow.trigger(f"{name}_replay", {"destination": "crm", "rate": 100, "reason": "once more"})
    airflow.wait_for_run(f"{name}_replay", again, {"failed"}, timeout=600)
    assert "still fail" in airflow.task_log(f"{name}_replay", again, "replay")
    airflow.unpause(name, paused=True)
    return books


@pytest.mark.parametrize("name", PIPELINES)
def test_the_run_was_a_full_one(run: Run, name: str) -> None:
    total = run.books[name].total

    assert run.books[name].balanced
    assert (total.delivered, total.dropped, total.dead_lettered) == (3, 1, 6)
    commands = run.processes.commands()
    assert any("org.apache.spark.deploy.SparkSubmit" in command for command in commands)
    assert any("--without-spark" in command for command in commands)


def test_the_search_finds_what_was_planted(run: Run) -> None:
    found = [where for where, _ in run.shown(Scan([PLANTED]))]

    assert any(re.search(r"dag_id=marked_spark/.*task_id=process", where) for where in found), found
    assert any(re.search(r"dag_id=leak/.*\.log", where) for where in found), found
    assert any("/events/" in where for where in found), found
    assert any(where.endswith("/log/postgresql") for where in found), found
    assert {"rendered_task_instance_fields.rendered_fields", "xcom.value"} <= set(found)
    arguments = [command for command, name in run.processes.arguments() if name == "planted"]
    assert any("spark-submit" in command for command in arguments)
    assert any("time.sleep" in command for command in arguments)


def test_no_log_no_event_and_no_table_of_airflow_shows_a_secret_or_a_payload(run: Run) -> None:
    assert run.shown(Scan(MARKS.values())) == []


def test_no_process_has_a_secret_or_a_payload_in_its_arguments(run: Run) -> None:
    assert [found for found in run.processes.arguments() if found[1] in MARKS] == []


def test_handlers_on_spark_and_in_a_plain_process_were_given_their_connections(run: Run) -> None:
    api, token = (sha256(str(MARKS[name]).encode()).hexdigest() for name in ("api", "token"))

    assert run.left("crm") == {f"{api} {token} {api}"}
    shown = "".join(log.read_text() for log in (run.airflow.home / "logs").rglob("*.log"))
    assert "<Connection 'marked_api' of type 'http'> logs in with ***" in shown


def test_no_store_and_no_file_keeps_what_handlers_logged_in_with(run: Run) -> None:
    assert run.kept == []
    assert list(Scan(MARKS[name] for name in LOGINS).files(run.home)) == []


def test_a_missing_connection_delays_messages_and_a_changed_one_is_taken_at_the_next_try(run: Run) -> None:
    assert run.late == ({"waiting": 0, "dead": 0}, {"delivered": 2, "dead": 0})
    assert run.left("late") == {sha256(str(MARKS[name]).encode()).hexdigest() for name in ("late", "later")}
    logs = (run.airflow.home / "logs" / "dag_id=marked_late").rglob("*.log")
    assert any("which the destination 'partner_late' asks for: create it in Airflow" in log.read_text() for log in logs)


def test_only_the_jobs_have_the_stores_in_their_environment(run: Run) -> None:
    having = {command for command, name in run.processes.environments() if name in MARKS}

    assert having
    assert [command for command in having if not JOB.search(command)] == []
