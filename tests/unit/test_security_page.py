"""docs/security.md: every test it calls as a witness is there, and holds tests."""

import re
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
PAGE = (REPOSITORY / "docs" / "security.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (?!who \||---)(.+) \|$", PAGE, re.MULTILINE)


def test_every_protection_names_a_test_that_is_there() -> None:
    assert len(ROWS) > 10
    for row in ROWS:
        witnesses = re.findall(r"`(tests/[\w/.]+)`", row.rpartition("|")[2])
        assert witnesses, row
        for witness in witnesses:
            path = REPOSITORY / witness
            files = [path] if path.is_file() else list(path.glob("test_*.py"))
            assert any("def test_" in file.read_text(encoding="utf-8") for file in files), witness


def test_how_to_report_is_where_people_look() -> None:
    assert (REPOSITORY / "SECURITY.md").is_file()
    assert "SECURITY.md" in PAGE


def test_an_audit_that_could_not_look_something_up_fails() -> None:
    assert "pip-audit --strict" in (REPOSITORY / "Makefile").read_text(encoding="utf-8")
