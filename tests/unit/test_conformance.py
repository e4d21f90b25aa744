"""The table of what was asked for names tests that exist, and names one for every row."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from mutants.guards import GUARDS

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "docs" / "conformance.md"
NAME = re.compile(r"`(test_\w+)`")
SHOWN = re.compile(r"\*\*`(test_\w+)`\*\*")


def rows() -> list[str]:
    """The rows of all tables, without their headings."""
    lines = TABLE.read_text(encoding="utf-8").splitlines()
    return [
        line
        for line, following in zip(lines, [*lines[1:], ""], strict=True)
        if line.startswith("|") and not line.startswith("| ---") and not following.startswith("| ---")
    ]


def existing_tests() -> set[str]:
    found: set[str] = set()
    for path in (*(ROOT / "tests").rglob("*.py"), *(ROOT / "plugins" / "homing" / "testing").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test_"):
                found.add(node.name)
    return found


def test_the_table_has_rows() -> None:
    assert len(rows()) > 50


def test_every_test_named_in_the_table_exists() -> None:
    named = {name for row in rows() for name in NAME.findall(row)}
    assert named - existing_tests() == set()


def test_those_in_bold_are_those_that_are_seen_to_fail_when_a_guard_is_taken_out() -> None:
    fail = {re.split(r"::|\[", test)[1] for guard in GUARDS for test in guard.tests}
    named = {name for row in rows() for name in NAME.findall(row)}
    shown = {name for row in rows() for name in SHOWN.findall(row)}
    plain = {name for row in rows() for name in NAME.findall(SHOWN.sub("", row))}
    assert shown == named & fail
    assert plain == named - fail


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.split("|")[2].strip()[:60])
def test_every_row_names_a_test(row: str) -> None:
    assert NAME.findall(row.split("|")[-2])
