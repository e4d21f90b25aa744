"""docs/stores.md says what the stores say of themselves, and names tests that exist."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from homing.store import ALL_FEATURES, STORE_KINDS
from homing.stores.sql.properties import OPTION_NAMES, SqlProperties

_ROOT = Path(__file__).resolve().parents[2]
_TEXT = (_ROOT / "docs" / "stores.md").read_text()


def rows(text: str) -> list[list[str]]:
    """The cells of the tables in this text, their heads left out."""
    lines = [line.strip().strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in cells] for cells in lines if not set("".join(cells)) <= set("- ")]


def test_the_table_of_abilities_is_what_the_stores_declare() -> None:
    part = _TEXT.partition("<!-- abilities")[2].partition("<!-- /abilities -->")[0]
    head, *body = rows(part)
    stores = [name for name in head if name in STORE_KINDS]

    assert set(stores) == set(STORE_KINDS)
    assert [cells[0].strip("`") for cells in body] == list(ALL_FEATURES)
    for cells in body:
        for name in stores:
            declared = cells[0].strip("`") in STORE_KINDS[name].features
            assert (cells[head.index(name)] == "yes") == declared, f"{cells[0]} of {name}"


def test_every_option_of_the_sql_stores_is_documented_with_its_default() -> None:
    part = _TEXT.partition("## Options of the SQL stores")[2].partition("###")[0]
    documented = {cells[0].strip("`"): cells[1] for cells in rows(part)[1:]}

    assert set(documented) == set(OPTION_NAMES)
    for field in fields(SqlProperties):
        assert type(field.default)(documented[field.name].strip("`")) == field.default, field.name


def test_every_transition_of_the_diagram_names_a_test_that_exists() -> None:
    diagram = re.findall(r"^    (\S+) --> (\S+): (.+)$", _TEXT, re.MULTILINE)
    part = _TEXT.partition("Each transition, and the test that shows it:")[2]
    table = rows(part)[1:]
    suite = (_ROOT / "plugins" / "homing" / "testing").rglob("*.py")
    sources = [path.read_text() for path in (*(_ROOT / "tests").rglob("test_*.py"), *suite)]

    drawn = {(a.replace("[*]", ""), b.replace("[*]", ""), how) for a, b, how in diagram}
    assert drawn == {(cells[0], cells[1], cells[2]) for cells in table}
    for cells in table:
        names = re.findall(r"`(test_\w+)`", cells[3])
        assert names, f"no test for {cells[:3]}"
        for name in names:
            assert any(f"def {name}(" in source for source in sources), name
