"""The core alone, on every Python it is for: nothing of Airflow and Spark, and the README's first example."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.install.environment import PYTHONS, REPOSITORY, Environment, find_python

pytestmark = [pytest.mark.install, pytest.mark.timeout(900)]

EXAMPLE, OUTPUT = re.findall(r"```(?:\w*)\n(.*?)```", (REPOSITORY / "README.md").read_text(), re.DOTALL)[:2]
WHERE = "import homing, sys; print(homing.__file__, *sys.path, sep='\\n')"


@pytest.fixture(scope="module", params=PYTHONS)
def core(request: pytest.FixtureRequest, place: Path, wheel: Path) -> Environment:
    python = find_python(request.param)
    if python is None:
        pytest.skip(f"there is no Python {request.param} on this machine: the core was not installed on it")
    made = Environment(python, place / request.param)
    made.install(wheel)
    return made


def test_the_core_is_small_and_runs_the_first_example(core: Environment, capsys: pytest.CaptureFixture[str]) -> None:
    home, *path = core.run("python", "-c", WHERE).splitlines()
    printed = core.run("python", "-c", EXAMPLE)
    counted = core.run("homing", "stores", "sqlite:///inbox.db?store=orders")
    packages = core.packages()

    assert Path(home).is_relative_to(core.venv)
    assert not any(Path(each).is_relative_to(REPOSITORY) for each in path)
    assert printed == OUTPUT
    assert "orders" in counted
    assert len(packages) <= 12, packages
    assert core.megabytes() < 60
    with capsys.disabled():
        print(
            f"\nthe core on {core.python}: {len(packages)} packages, {core.megabytes():.0f} MB: {', '.join(packages)}"
        )


def test_the_oldest_sqlalchemy_that_is_promised_will_do(place: Path, wheel: Path) -> None:
    python = find_python(f"{sys.version_info.major}.{sys.version_info.minor}")
    oldest = re.search(r'"sqlalchemy>=([\d.]+)', (REPOSITORY / "pyproject.toml").read_text())
    assert python is not None
    assert oldest is not None
    made = Environment(python, place / "oldest")

    made.install(wheel, f"sqlalchemy=={oldest[1]}", constraints=None)

    assert made.packages()["sqlalchemy"] == oldest[1]
    assert made.run("python", "-c", EXAMPLE) == OUTPUT


def test_the_chain_of_a_new_project_passes_its_tests_on_the_core_and_what_it_names_as_missing(
    core: Environment,
) -> None:
    core.run("homing", "new", "web_shop")
    core.install("pydantic", "pytest")
    said = core.run("python", "-m", "pytest", "-rs", "web_shop")

    assert "4 passed, 1 skipped" in said
    assert 'the DAG needs Airflow: pip install "homing[airflow,spark]"' in said
