"""The README tells the truth: its example is near the top, runs, and prints what it says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"
BLOCK = re.compile(r"```(\w*)\n(.*?)```", re.DOTALL)


def blocks() -> list[tuple[str, str]]:
    return BLOCK.findall(README.read_text())


def test_the_example_stands_within_the_first_forty_lines_and_prints_what_it_says(tmp_path: Path) -> None:
    (language, example), (_, output), *_ = blocks()
    lines = README.read_text().split(example)[0] + example

    done = subprocess.run(
        [sys.executable, "-c", example], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
    )

    assert language == "python"
    assert lines.count("\n") <= 40
    assert done.stdout == output


def test_the_dag_example_makes_the_dags_it_promises(tmp_path: Path) -> None:
    example = next(text for language, text in blocks() if language == "python" and "delivery_dag" in text)
    script = example.replace("\ndelivery_dag(", "\nmade = delivery_dag(")
    script += "\nprint(*[f'{dag.dag_id}: {sorted(dag.task_ids)}' for dag in made], sep='\\n')"
    path = str(README.parent / "dags")

    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", f"import sys; sys.path.insert(0, {path!r})\n{script}"],
        capture_output=True, text=True, timeout=120, check=True, env={"AIRFLOW_HOME": str(tmp_path), "PATH": ""},
    )  # fmt: skip

    assert done.stdout.splitlines() == [
        "orders: ['deliver.crm', 'deliver.lake', 'listen', 'process', 'settle']",
        "orders_replay: ['replay', 'select', 'settle']",
    ]


def test_every_make_target_it_names_exists() -> None:
    makefile = (README.parent / "Makefile").read_text()
    named = set(re.findall(r"(?:^|`)make ([a-z]+)", README.read_text(), re.MULTILINE))

    assert named
    for target in named:
        assert f"\n{target}:" in makefile, target


def test_every_document_it_links_to_exists() -> None:
    for link in re.findall(r"\]\(([^)]+)\)", README.read_text()):
        assert (README.parent / link).is_file(), link
