"""Every command of docs/command-line.md runs, in order, and every command there is is in it."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from homing.cli.command import EXIT_FAILED, EXIT_MISCONFIGURED, EXIT_OK, EXIT_UNAVAILABLE, Command
from homing.cli.commands import COMMANDS
from tests.unit.cli.conftest import CHAIN, Shell

PAGE = (Path(__file__).parents[3] / "docs" / "command-line.md").read_text()
LINES = re.findall(r"^\$ homing (.*)$", PAGE, re.MULTILINE)


def test_every_line_of_the_page_runs(homing: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop_chain.py").write_text(CHAIN)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("CRM", "up")

    for line in LINES:
        if line.startswith("grants"):
            continue  # of PostgreSQL: tests/unit/delivery/test_roles.py runs them all
        answer = homing(*shlex.split(line))

        assert answer.code == 0, f"homing {line}: {answer.err}"


def test_the_page_has_every_command() -> None:
    assert {line.split()[0] for line in LINES} == {command.name for command in COMMANDS}


def test_the_page_has_every_exit_code() -> None:
    assert re.findall(r"^\| (\d) \|", PAGE, re.MULTILINE) == [
        str(code) for code in (EXIT_OK, EXIT_FAILED, EXIT_MISCONFIGURED, EXIT_UNAVAILABLE)
    ]


def test_whatever_changes_something_has_a_dry_run_and_says_why() -> None:
    recorded = {"init", "replay", "dead-letter", "purge", "forget"}

    assert {command.name for command in COMMANDS if has(command, "--dry-run")} == {
        *recorded, "new", "send", "bench-claim",
    }  # fmt: skip
    assert {command.name for command in COMMANDS if has(command, "--reason")} == recorded


def has(command: Command, flag: str) -> bool:
    return any(flag in each.flags for each in command.arguments)
