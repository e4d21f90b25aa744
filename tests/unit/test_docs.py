"""The code in the documentation runs: the python blocks of each page, one after the other, as one script."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import homing

DOCS = Path(__file__).parents[2] / "docs"
DAGS = DOCS.parent / "dags"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def script_of(page: Path) -> str:
    """The page as a program: its code at the lines where it stands, so that an error shows the place."""
    text = page.read_text(encoding="utf-8")
    lines = [""] * text.count("\n")
    for block in BLOCK.finditer(text):
        first = text.count("\n", 0, block.start(1))
        code = block.group(1).splitlines()
        lines[first : first + len(code)] = code
    return "\n".join(lines).rstrip()


# The page about Spark runs with the Spark tests, which have a session; the one about installing, on an empty machine;
# the one about testing, in a new project (tests/airflow/test_new_project.py).
ELSEWHERE = {"installing.md", "spark.md", "testing.md"}
PAGES = sorted(
    page for page in DOCS.glob("*.md") if page.name not in ELSEWHERE and BLOCK.search(page.read_text(encoding="utf-8"))
)


def run(script: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, script.name],
        cwd=script.parent,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(homing.__path__[0]).parent), str(DAGS)])},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_there_are_pages_with_code() -> None:
    assert {"listener.md", "pipelines.md"} <= {page.name for page in PAGES}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_code_of_the_page_runs(page: Path, tmp_path: Path) -> None:
    script = tmp_path / f"{page.stem.replace('-', '_')}_page.py"
    script.write_text(script_of(page), encoding="utf-8")
    done = run(script)
    assert done.returncode == 0, done.stderr


def test_code_that_fails_is_noticed_with_its_line(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Page\n\n```python\nprice = 1\n```\n\ntext\n\n```python\nassert price == 2\n```\n")
    script = tmp_path / "page.py"
    script.write_text(script_of(page))
    done = run(script)
    assert done.returncode == 1
    assert "line 10" in done.stderr
