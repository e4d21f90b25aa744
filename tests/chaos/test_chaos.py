"""The chaos run, short; and its checker and its nemesis, which must see what is wrong and leave nothing out."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from chaos import __main__ as harness
from chaos.checker import Report, check, table
from chaos.destination import Destination, DestinationError
from chaos.nemesis import Nemesis
from chaos.subjects import KINDS, Kind, Subject

ROOT = Path(__file__).parents[2]
#: Begins with a kill of the worker.
SEED = 4


def report(**changes: Any) -> Report:
    facts: dict[str, Any] = {
        "attempted": ["a", "b", "c"],
        "accepted": ["a", "b", "c"],
        "delivered": {"a lake": 1, "a crm": 1},
        "dropped": ["c"],
        "refused": ["a", "b"],
        "dead": {"b": "DestinationError"},
        "flows": ("lake", "crm"),
        "duplicates_allowed": 1,
        "unexplained_allowed": 0,
        "stuck": [],
        "harms": {"kill worker": 1, "fill disk": 0},
        "thorough": False,
    }
    return check(**{**facts, **changes})


def test_a_message_is_delivered_everywhere_or_dropped_or_a_dead_letter_with_a_reason() -> None:
    assert report().good
    assert report(delivered={"a lake": 2, "a crm": 1}).good


def test_what_is_delivered_and_a_dead_letter_as_well_is_counted_and_not_lost() -> None:
    found = report(dead={"a": "DestinationError", "b": "DestinationError"})

    assert (found.good, found.delivered, found.both) == (True, 1, 1)


def test_what_still_waits_is_stuck_and_not_lost() -> None:
    found = report(dead={}, stuck=["b"])

    assert (found.good, found.lost, found.stuck) == (False, (), ("b",))


@pytest.mark.parametrize(
    "changes",
    [
        {"delivered": {"a lake": 1}},
        {"dead": {}},
        {"dropped": []},
        {"dead": {"b": None}},
        {"delivered": {"a lake": 1, "a crm": 1, "d lake": 1}},
        {"delivered": {"a lake": 1, "a crm": 1, "a lake with the content of b": 1}},
        {"delivered": {"a lake": 1, "a crm": 1, "c lake": 1}},
        {"dead": {"b": "DestinationError", "d": "DestinationError"}, "refused": ["b", "d"]},
        {"delivered": {"a lake": 2, "a crm": 2}},
        {"dead": {"a": "DestinationError", "b": "DestinationError"}, "duplicates_allowed": 0},
        {"refused": []},
        {"stuck": ["a"]},
        {"attempted": [], "accepted": [], "delivered": {}, "dead": {}, "dropped": []},
        {"delivered": {}, "dead": {"a": "E", "b": "E"}},
        {"thorough": True},
    ],
    ids=[
        "half delivered", "lost", "not even dropped", "no reason", "unexpected", "another's content",
        "delivered what is dropped", "unexpected dead letter", "too many duplicates", "too many in both places",
        "never refused and dead", "stuck", "nothing happened", "nothing delivered", "a harm never done",
    ],
)  # fmt: skip
def test_the_checker_sees_what_is_wrong(changes: dict[str, Any]) -> None:
    found = report(**changes)

    assert not found.good
    assert "NOT GOOD" in table({"a store": found})


def test_the_table_says_which_harms_were_done_and_which_never() -> None:
    assert "done: kill worker 1\n  never done: fill disk" in table({"a store": report()})


# -- the nemesis -----------------------------------------------------------------------------------------------


def nemesis(folder: Path, seed: str) -> Nemesis:
    subject = Subject(folder, "sqlite:///x.db", "sqlite:///y.db", "listen", server=object(), disk=folder)
    return Nemesis(seed, Destination(folder), subject)


def test_every_deck_holds_every_harm_once(tmp_path: Path) -> None:
    of_seven = nemesis(tmp_path, "7")
    names = [harm.name for harm, _ in of_seven.deal()]

    assert sorted(names) == sorted(of_seven.harms)
    assert {
        "kill generator", "kill worker", "stop worker", "destination down", "destination slow",
        "destination late", "restart server", "freeze server", "fill disk", "end leases",
    } < set(names)  # fmt: skip


def test_a_seed_is_the_order_of_all_harms(tmp_path: Path) -> None:
    def order(seed: str) -> list[tuple[str, float]]:
        drawn = nemesis(tmp_path, seed)
        return [(harm.name, number) for _ in range(2) for harm, number in drawn.deal()]

    assert order("7") == order("7") != order("8")


def test_a_seed_says_which_attempts_the_destination_refuses(tmp_path: Path) -> None:
    def refusals(name: str) -> list[bool]:
        folder = tmp_path / name
        folder.mkdir()
        destination = Destination(folder)
        destination.set_seed("7")
        return [_refuses(destination, number) for number in range(7, 400, 20) for _ in range(3)]

    assert refusals("one") == refusals("two")
    assert {*refusals("three")} == {True, False}


def _refuses(destination: Destination, number: int) -> bool:
    try:
        destination.take(f"m{number}", "lake", number)
    except DestinationError:
        return True
    return False


# -- the harness -----------------------------------------------------------------------------------------------


@dataclass
class LosingSubject(Subject):
    """Its one worker acknowledges before it delivers, and is the only one to be harmed."""

    def _commands(self) -> dict[str, list[str]]:
        loser = [sys.executable, "-m", "tests.chaos.loser", str(self.folder), self.store, self.dead]
        return {**self._generator(), "worker": loser}


def losing(folder: Path, patience: float) -> Subject:
    store, dead = (f"sqlite:///{folder}/chaos.db?store={name}" for name in ("orders", "orders_dead"))
    return LosingSubject(folder, store, dead, "", roles={"worker": 1}, calm=0.5, spell=0.5, patience=patience)


def test_a_worker_that_acknowledges_before_it_delivers_is_found_out(tmp_path: Path) -> None:
    for attempt in range(6):  # the kill may just come when everything is delivered
        folder = tmp_path / str(attempt)
        folder.mkdir()
        found = harness.run("a loser", losing(folder, patience=1), 0.5, seed=SEED)
        if found.lost:
            break

    assert found.harms["kill worker"]
    assert found.lost
    assert not found.good
    assert f"LOST: {found.lost[0]}" in table({"a loser": found})


def test_what_it_loses_it_loses_to_the_nemesis(tmp_path: Path) -> None:
    found = harness.run("a loser", losing(tmp_path, patience=30), 0, seed=SEED)

    assert found.good


def test_a_subject_that_cannot_be_run_has_failed_and_the_next_one_comes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @contextmanager
    def broken(_folder: Path) -> Iterator[Subject]:
        raise RuntimeError("no such server")
        yield

    @contextmanager
    def missing(_folder: Path) -> Iterator[Subject]:
        pytest.skip("not installed")
        yield

    for name, make in (("spark", broken), ("airflow", missing)):
        monkeypatch.setitem(KINDS, name, Kind(1, make))
    monkeypatch.setattr(sys, "argv", ["chaos", "--duration", "1", "--subjects", "spark,airflow"])

    assert harness.main() == 1

    end = capsys.readouterr().out.rpartition("accepted")[2]
    assert "RuntimeError: no such server" in end
    assert "Skipped: not installed" in end
    assert "NOT GOOD" in end


@pytest.mark.parametrize("asked", ["sqlite,sprak", "", "sqlite,"])
def test_a_subject_that_there_is_not_is_refused(asked: str) -> None:
    with pytest.raises(ValueError, match=r"none of the subjects: sqlite listen, .*, airflow"):
        harness.chosen(asked)


def test_a_subject_is_chosen_by_how_its_name_begins() -> None:
    assert harness.chosen("spark, sqlite") == ["sqlite listen", "sqlite deliver", "spark"]


@pytest.mark.chaos
@pytest.mark.services
def test_a_short_run_loses_nothing() -> None:
    command = [sys.executable, "-m", "chaos", "--duration", "12", "--seed", "3", "--subjects", "sqlite,rabbitmq"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "Nothing was lost." in done.stdout
