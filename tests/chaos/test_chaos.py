"""The chaos run, short; and its checker, which must see what is wrong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from chaos.checker import Report, check, table

ROOT = Path(__file__).parents[2]


def report(**changes: Any) -> Report:
    facts: dict[str, Any] = {
        "attempted": ["a", "b"],
        "accepted": ["a", "b"],
        "delivered": {"a lake": 1, "a crm": 1},
        "dead": {"b": "DestinationError"},
        "flows": ("lake", "crm"),
        "duplicates_allowed": 1,
        "stuck": 0,
    }
    return check(**{**facts, **changes})


def test_a_message_is_delivered_everywhere_or_a_dead_letter_with_a_reason() -> None:
    assert report().good
    assert report(delivered={"a lake": 2, "a crm": 1}).good


def test_what_is_delivered_and_a_dead_letter_as_well_is_counted_and_not_lost() -> None:
    found = report(dead={"a": "DestinationError", "b": "DestinationError"})

    assert (found.good, found.delivered, found.both) == (True, 1, 1)


@pytest.mark.parametrize(
    "changes",
    [
        {"delivered": {"a lake": 1}},
        {"dead": {}},
        {"dead": {"b": None}},
        {"delivered": {"a lake": 1, "a crm": 1, "c lake": 1}},
        {"delivered": {"a lake": 2, "a crm": 2}},
        {"stuck": 1},
        {"attempted": [], "accepted": [], "delivered": {}, "dead": {}},
    ],
    ids=["half delivered", "lost", "no reason", "unexpected", "too many duplicates", "stuck", "nothing happened"],
)
def test_the_checker_sees_what_is_wrong(changes: dict[str, Any]) -> None:
    found = report(**changes)

    assert not found.good
    assert "NOT GOOD" in table({"a store": found})


@pytest.mark.chaos
@pytest.mark.services
def test_a_short_run_loses_nothing() -> None:
    command = [sys.executable, "-m", "chaos", "--duration", "12", "--seed", "3", "--subjects", "sqlite,rabbitmq"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "Nothing was lost." in done.stdout
