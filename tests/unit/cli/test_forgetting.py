"""forget, and what purge does to the ledger."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from homing.delivery import PipelineStores, work_files
from homing.delivery.operations import read_operations
from tests.unit.cli.conftest import Shell
from tests.unit.delivery.conftest import FLOWS, Pipeline


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's own state, and in it the work directory of a pipeline."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    place = tmp_path / "state" / "homing" / "work" / "orders"
    place.mkdir(parents=True)
    return place


def counts(rows: list[dict[str, object]], did: str = "removed") -> dict[object, object]:
    return {row["place"]: row[did] for row in rows}


def test_a_dry_run_says_what_there_is_and_changes_nothing(homing: Shell, dead: str, stores: PipelineStores) -> None:
    before = stores.ledger.known([dead])

    answer = homing("forget", dead, "--reason", "asked for", "--dry-run", "-o", "json")

    found = {"store": 1, "failure store": 0, "dead-letter store": 1, "ledger": 2}
    assert (answer.code, counts(answer.data, "would_remove")) == (0, found)
    assert (stores.ledger.known([dead]), stores.ledger.tombstones.all()) == (before, [])


def test_a_message_is_removed_everywhere_and_what_is_out_of_reach_is_said(
    homing: Shell, dead: str, stores: PipelineStores, pipeline: Pipeline
) -> None:
    name = pipeline.ref(dead).name

    answer = homing("forget", dead, "--reason", "asked for", "-o", "json")

    removed = {"store": 1, "failure store": 0, "dead-letter store": 1, "ledger": 2, "folders of runs": 0}
    assert (answer.code, counts(answer.data)) == (0, removed)
    assert "the destinations it was delivered to: lake" in answer.err
    for place in ("broker", "backups", "Airflow", "name it by --work-dir"):
        assert place in answer.err
    assert homing("show", dead).code == 1
    sheet = homing("audit", "--destinations", ",".join(FLOWS), "-o", "json")
    assert (sheet.code, sheet.data["sums"][0]["forgotten"], sheet.data["balanced"]) == (0, 1, True)
    again = homing("forget", name, "--reason", "asked for")
    assert (again.code, f"message {name} was forgotten at" in again.err, "asked for" in again.err) == (0, True, True)


def test_who_forgot_how_many_and_why_is_kept_without_the_ids(homing: Shell, dead: str) -> None:
    homing("forget", dead, "--dry-run", "--reason", "only looked")
    homing("forget", dead, "--reason", "asked for")

    (one,) = homing.json("operations")

    assert (one["what"], one["why"], one["messages"], one["state"]) == ("forget", "asked for", 1, "done")
    assert not one["selection"]


def test_the_folders_of_its_runs_go_from_the_work_directories_of_this_user_or_those_named(
    homing: Shell, failed: str, stores: PipelineStores, state: Path, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    for place in (state, elsewhere):
        Path(work_files.WorkDir(str(place), work_files.LocalFiles(), stores.ledger).new_output("run", "me")).mkdir()

    homing("forget", failed, "--reason", "asked for", "--work-dir", str(elsewhere))
    assert (len(list(state.iterdir())), len(list(elsewhere.iterdir()))) == (1, 0)


def test_without_a_work_directory_those_of_this_user_are_looked_into(
    homing: Shell, failed: str, stores: PipelineStores, state: Path
) -> None:
    Path(work_files.WorkDir(str(state), work_files.LocalFiles(), stores.ledger).new_output("run", "me")).mkdir()

    answer = homing("forget", failed, "--reason", "asked for", "-o", "json")

    assert (counts(answer.data)["folders of runs"], list(state.iterdir())) == (1, [])
    assert f"(looked into {state}): name it by --work-dir" in answer.err


def test_a_work_directory_elsewhere_is_reached_by_hadoop_or_nothing_is_said_to_be_forgotten(
    homing: Shell, failed: str, stores: PipelineStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("SPARK_HOME", raising=False)

    answer = homing("forget", failed, "--reason", "asked for", "--work-dir", "hdfs://nodes/work")

    assert (answer.code, "needs spark-class" in answer.err) == (1, True)
    assert stores.failures.count()["available"] == 1


def test_an_id_of_several_messages_removes_all_and_names_them(
    homing: Shell, stores: PipelineStores, pipeline: Pipeline
) -> None:
    names = []
    for number in range(2):
        stores.store.store(number, id="again")
        batch = pipeline.batch(f"run {number}")
        batch.claim(1)
        names.append(pipeline.ref("again").name)
        pipeline.delivered(f"run {number}", "again", *FLOWS)
        batch.settle()
        stores.store.purge(0)

    answer = homing("forget", "again", "--reason", "asked for", "-o", "json")

    assert f"again means 2 messages: {', '.join(names)}" in answer.err
    assert counts(answer.data)["ledger"] == 4


def test_what_is_unknown_ends_with_1_and_the_others_are_removed(homing: Shell, failed: str) -> None:
    answer = homing("forget", "unheard", failed, "--reason", "asked for", "-o", "json")

    assert (answer.code, "message unheard is unknown" in answer.err) == (1, True)
    assert counts(answer.data)["failure store"] == 1


def test_what_somebody_works_on_is_refused_and_stays(homing: Shell, pipeline: Pipeline) -> None:
    _, (held,) = pipeline.claimed("run", 1)

    answer = homing("forget", held, "--reason", "asked for")

    assert (answer.code, "it is leased until" in answer.err, "UTC" in answer.err) == (1, True, True)
    assert pipeline.stores.store.count()["leased"] == 1


KILLED = """
import os, signal, sys
from homing.cli.main import main
from homing.delivery import work_files
from homing.stores.sql import SqlLedger
from homing.stores.sql.removal import SqlErasure
from homing.stores.sql.tombstones import SqlTombstones

def die(*args, **options):
    os.kill(os.getpid(), signal.SIGKILL)

setattr({place}, "{step}", die)
sys.exit(main(["forget", "x", "--reason", "asked for"]))
"""


@pytest.mark.parametrize(
    ("place", "step"),
    [
        ("SqlTombstones", "begin"),
        ("work_files", "erase"),
        ("SqlErasure", "remove"),
        ("SqlLedger", "remove"),
        ("SqlErasure", "scrub"),
        ("SqlTombstones", "finish"),
    ],
)
def test_a_command_that_was_killed_is_finished_by_the_same_command(
    homing: Shell, pipeline: Pipeline, state: Path, place: str, step: str
) -> None:
    pipeline.stores.store.store({"text": "Marked-5f0e"}, id="x")
    batch = pipeline.batch("run")
    batch.claim(1)
    Path(
        work_files.WorkDir(str(state), work_files.LocalFiles(), pipeline.stores.ledger).new_output("run", "me")
    ).mkdir()
    pipeline.delivered("run", "x", "lake")
    pipeline.failed("run", "x", "crm")
    batch.settle()

    killed = subprocess.run([sys.executable, "-c", KILLED.format(place=place, step=step)], timeout=120, check=False)

    assert killed.returncode == -signal.SIGKILL
    books = homing("audit", "--destinations", ",".join(FLOWS), "-o", "json")
    assert (books.code, books.data["unaccounted"]) == (0, [])
    assert homing("forget", "x", "--reason", "asked for").code == 0
    assert [path for path in state.parents[3].glob("x.db*") if b"Marked-5f0e" in path.read_bytes()] == []
    assert list(state.iterdir()) == []
    books = homing("audit", "--destinations", ",".join(FLOWS), "-o", "json")
    assert (books.code, books.data["sums"][0]["forgotten"]) == (0, 1)


def test_a_reason_must_be_given(homing: Shell, failed: str) -> None:
    assert homing("forget", failed).code == 2
    assert homing("forget", failed, "--reason", "").code == 2


def test_purge_removes_what_the_retention_of_the_ledger_says(
    homing: Shell, stores: PipelineStores, pipeline: Pipeline
) -> None:
    batch, (done,) = pipeline.claimed("run", 1)
    pipeline.delivered("run", done, *FLOWS)
    batch.settle()
    assert "ledger_removed" not in homing.json("purge", "--older-than", "0", "--dry-run")
    stores.store.configure(ledger_retention=1e-6)

    assert homing.json("purge", "--older-than", "PT1H") == {"store": "orders", "removed": 0, "ledger_removed": 0}
    assert homing.json("purge", "--older-than", "0") == {"store": "orders", "removed": 1, "ledger_removed": 1}
    assert homing.json("purge", "--dry-run") == {"store": "orders", "would_remove": 0, "ledger_would_remove": 0}
    assert stores.ledger.known([done]) == {}
    assert [one.outcome for one in read_operations(stores.store)] == [
        {"removed": 0, "ledger_removed": 0},
        {"removed": 1, "ledger_removed": 1},
    ]


def test_purge_leaves_the_ledger_alone_where_it_does_not_know_the_dead_letters(
    homing: Shell, stores: PipelineStores, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline.claimed("run", 1)
    stores.store.configure(ledger_retention=1e-6)
    monkeypatch.delenv("HOMING_DEAD_LETTER_STORE")

    answer = homing("purge", "--older-than", "0", "-o", "json")

    assert (answer.code, answer.data) == (0, {"store": "orders", "removed": 0})
    assert "the ledger is not trimmed" in answer.err
