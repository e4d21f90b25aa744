"""docs/code.md shows the imports as they are in the code."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "draw_imports.py"


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPT))


def test_the_page_shows_the_imports_of_the_code(script: dict[str, Any]) -> None:
    assert script["main"](["--check"]) == 0


def test_a_page_that_shows_something_else_is_noticed(
    script: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "code.md"
    page.write_text(script["PAGE"].read_text(encoding="utf-8").replace("delivery --> stores", "stores --> delivery"))
    script["main"].__globals__["PAGE"] = page
    assert script["main"](["--check"]) == 1
    assert "run `python scripts/draw_imports.py`" in capsys.readouterr().out
    assert script["main"]([]) == 0
    assert script["main"](["--check"]) == 0
    assert "    delivery --> stores\n" in page.read_text(encoding="utf-8")


def test_an_arrow_that_a_longer_way_implies_is_not_drawn(script: dict[str, Any]) -> None:
    imports = {"a": {"b", "c"}, "b": {"c"}, "c": set()}
    assert script["without_detours"](imports) == {"a": {"b"}, "b": {"c"}, "c": set()}
