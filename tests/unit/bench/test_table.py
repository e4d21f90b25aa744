"""The benchmark's table, its figures and its verdicts, from made-up seconds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bench import __main__ as program
from bench import peers
from bench.figures import ABOVE, FAILED, WITHIN, Row, summary, table
from bench.player import Player
from bench.rounds import Case, Comparison, rows, take_turns
from bench.scale import QUICK
from bench.services import Services

ROW = Row("SQLite", "claim + settle 1,000", "litequeue", bar=0.5, ours=[1.0, 1.0, 4.0], theirs=[4.0, 2.0, 4.0])


def test_a_ratio_is_ours_to_theirs_within_a_round() -> None:
    assert ROW.ratios == [0.25, 0.5, 1.0]
    assert ROW.figures() == {
        "part": "SQLite",
        "what": "claim + settle 1,000",
        "to": "litequeue",
        "bar": 0.5,
        "verdict": WITHIN,
        "median": 0.5,
        "least": 0.25,
        "most": 1.0,
        "rounds": 3,
        "ours_seconds": 1.0,
        "theirs_seconds": 4.0,
    }


@pytest.mark.parametrize(("bar", "verdict"), [(0.49, ABOVE), (0.5, WITHIN), (None, "")])
def test_a_bar_is_the_most_that_the_median_may_be(bar: float | None, verdict: str) -> None:
    assert replace(ROW, bar=bar).verdict == verdict


def test_what_failed_is_in_the_table_and_in_the_figures() -> None:
    broken = replace(ROW, error="RuntimeError: litequeue gave up:\nno such table", theirs=[4.0])

    assert broken.verdict == FAILED
    assert broken.figures()["error"] == broken.error
    assert "FAILED: RuntimeError: litequeue gave up: no such table" in table([broken])
    assert replace(ROW, ours=[], theirs=[]).verdict == FAILED
    assert summary([ROW, broken, replace(ROW, bar=0.1)]) == "3 rows; 1 of 2 bars kept; 1 FAILED"


def test_the_table_shows_medians_ranges_and_bars_in_aligned_columns() -> None:
    lines = table([ROW, replace(ROW, ours=[1e-5], theirs=[1e-2], bar=None)]).splitlines()

    assert len({len(line) for line in lines}) == 1
    assert [cell.strip() for cell in lines[2].split("|")[1:-1]] == [
        "SQLite", "claim + settle 1,000", "litequeue", "0.50", "0.25 – 1.00", "3", "1 s", "4 s", "≤ 0.50", "within"
    ]  # fmt: skip
    assert [cell.strip() for cell in lines[3].split("|")[4:9]] == ["0.001", "0.001 – 0.001", "1", "10 µs", "10 ms"]


def test_cases_take_turns_there_and_back_and_one_that_fails_spoils_only_its_own_rows() -> None:
    order: list[str] = []

    def working(name: str) -> float:
        order.append(name)
        return 1.0

    def failing() -> float:
        if "first" in order[1:]:
            raise ValueError("broken")
        return 1.0

    first, second = Case("first", lambda: working("first")), Case("second", lambda: working("second"))
    broken = Case("broken", failing)
    take_turns([first, second, broken], 2)

    assert order == ["first", "second", "second", "first", "first", "second"]
    assert len(first.seconds) == len(second.seconds) == 2
    good, bad = rows("made up", [Comparison("a", first, "b", second), Comparison("a", first, "c", broken)])
    assert good.median == 1.0
    assert bad.verdict == FAILED
    assert bad.error == "ValueError: broken"


def test_a_part_that_fails_keeps_the_rows_it_came_to_and_adds_one_that_says_why() -> None:
    def part(*_: object) -> Iterator[Row]:
        yield ROW
        pytest.fail("postgresql is not installed")

    found = program.measure({"postgresql": part, "growth": lambda *_: iter([ROW])}, QUICK)

    assert [row.verdict for row in found] == [WITHIN, FAILED, WITHIN]
    assert "postgresql is not installed" in found[1].error


def test_a_contestant_that_cannot_start_says_why() -> None:
    with Player("sqlite3-update", "/no/such/folder/queue.db") as player, pytest.raises(RuntimeError) as caught:
        player.seconds("enqueue", 1)

    assert str(caught.value) == "sqlite3-update gave up: sqlite3.OperationalError: unable to open database file"


def test_the_program_ends_with_1_when_something_could_not_be_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> Iterator[Row]:
        yield replace(ROW, bar=0.1)
        raise OSError("no broker")

    monkeypatch.setattr(peers, "install_peers", lambda: None)
    monkeypatch.setattr(peers, "PYTHON", tmp_path / "none")
    monkeypatch.setattr("sys.argv", ["bench", "--quick", "--only", "chain", "--output", str(tmp_path)])

    monkeypatch.setitem(program.PARTS, "chain", lambda *_: iter([replace(ROW, bar=0.1)]))
    assert program.main() == 0  # a bar that is not kept is a result, not a failure to measure

    monkeypatch.setitem(program.PARTS, "chain", broken)
    assert program.main() == 1
    assert "FAILED: OSError: no broker" in capsys.readouterr().out
    written = json.loads((tmp_path / "bench.json").read_text())["rows"]
    assert [row["verdict"] for row in written] == [ABOVE, FAILED]


def test_the_peers_versions_are_pinned() -> None:
    lines = (peers.HERE / "peers.txt").read_text().splitlines()

    assert all("==" in line for line in lines if not line.startswith("#"))


def test_services_that_nobody_asked_for_are_not_started() -> None:
    with Services(QUICK) as services:
        pass

    assert not {"postgresql", "rabbitmq", "airflow"} & vars(services).keys()
