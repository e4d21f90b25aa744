"""`homing new`: a project that works as it is written, under the name that was asked for."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from homing.cli import new
from homing.delivery import open_pipeline_stores
from tests.unit.cli.conftest import Shell

FILES = {
    ".gitignore", "README.md", "pytest.ini", "requirements.txt", "env/development", "env/production.example",
    "dags/web_shop_chain.py", "dags/web_shop_dag.py",
    "tests/conftest.py", "tests/test_web_shop_chain.py", "tests/test_web_shop_dag.py",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def written(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_it_writes_a_project_under_its_name_and_shows_its_files(homing: Shell, tmp_path: Path) -> None:
    shown = homing.json("new", "web_shop")

    assert set(written(tmp_path / "web_shop")) == FILES
    assert {row["file"] for row in shown} == {f"web_shop/{name}" for name in FILES}
    assert [path.name for path in tmp_path.iterdir()] == ["web_shop"], "no draft is left"


def test_nothing_in_it_has_the_name_of_another_project(homing: Shell, tmp_path: Path) -> None:
    assert homing("new", "bakery").code == 0

    assert not [name for name, text in written(tmp_path / "bakery").items() if "shop" in f"{name} {text}".lower()]


def test_every_file_that_its_readme_names_is_there(homing: Shell, tmp_path: Path) -> None:
    homing("new", "web_shop")
    named = re.findall(r"^\| `([\w/.]+)`", (tmp_path / "web_shop" / "README.md").read_text(), re.MULTILINE)

    assert len(named) == 5
    assert [name for name in named if not (tmp_path / "web_shop" / name).exists()] == []


def test_others_may_read_it_as_they_may_read_any_new_file(homing: Shell, tmp_path: Path) -> None:
    homing("new", "web_shop")
    (tmp_path / "usual").mkdir()

    assert (tmp_path / "web_shop").stat().st_mode == (tmp_path / "usual").stat().st_mode


@pytest.mark.parametrize("what", ["folder", "empty folder", "file", "dangling link"])
def test_what_is_there_is_never_overwritten(homing: Shell, tmp_path: Path, what: str) -> None:
    place = tmp_path / "web_shop"
    if what == "file":
        place.write_text("mine")
    elif what == "dangling link":
        place.symlink_to(tmp_path / "elsewhere")
    else:
        place.mkdir()
    if what == "folder":
        (place / "README.md").write_text("mine")

    answer = homing("new", "web_shop")

    assert answer.code == 2
    assert "web_shop exists already, and is left as it is" in answer.err
    assert set(written(tmp_path).values()) <= {"mine"}
    assert [path.name for path in tmp_path.iterdir()] == ["web_shop"]


@pytest.mark.parametrize(
    "name",
    ["", "Shop", "web-shop", "web shop", "web__shop", "shop_", "_shop", "9shop", "../shop", "/shop", "s/p", "käse",
     "shop.py", "shop\n", "s" * 26],
)  # fmt: skip
def test_a_name_that_its_dag_or_its_stores_could_not_have_is_refused(homing: Shell, tmp_path: Path, name: str) -> None:
    answer = homing("new", "--", name)

    assert answer.code == 2
    assert "cannot name a project" in answer.err
    assert "as in web_shop" in answer.err
    assert list(tmp_path.iterdir()) == []


def test_its_longest_name_is_one_that_its_stores_can_have(homing: Shell, tmp_path: Path) -> None:
    name = "s" * 25

    assert homing("new", name).code == 0
    assert homing("init", "--store", f"sqlite:///x.db?store={name}",
                  "--dead-letter-store", f"sqlite:///x.db?store={name}_dead").code == 0  # fmt: skip


def test_a_dry_run_shows_the_files_and_writes_none(homing: Shell, tmp_path: Path) -> None:
    answer = homing("new", "web_shop", "--dry-run")

    assert "would write 11 files" in answer.err
    assert "web_shop/dags/web_shop_chain.py" in answer.out
    assert list(tmp_path.iterdir()) == []


def test_a_project_that_cannot_be_written_whole_is_not_written_at_all(
    homing: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, left = Path.write_text, [1] * 5

    def full(path: Path, *args: Any, **options: Any) -> int:
        if not left:
            raise OSError(28, "No space left on device")
        left.pop()
        return write(path, *args, **options)

    monkeypatch.setattr(Path, "write_text", full)
    answer = homing("new", "web_shop")

    assert (answer.code, left) == (2, [])
    assert "web_shop cannot be written: No space left on device" in answer.err
    assert list(tmp_path.iterdir()) == []


def test_it_names_the_packages_that_the_project_needs_and_that_are_not_there(
    homing: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "not installed" not in homing("new", "web_shop", "--dry-run").err

    monkeypatch.setattr(new, "find_spec", lambda name: None)
    said = homing("new", "web_shop").err
    assert (
        "not installed here: pydantic, pytest, homing[airflow,spark]: pip install -r web_shop/requirements.txt" in said
    )


@pytest.mark.parametrize("environment", ["development", "production.example"])
def test_what_env_says_is_read_by_airflow_and_names_stores_that_a_pipeline_can_have(
    homing: Shell, tmp_path: Path, environment: str
) -> None:
    homing("new", "web_shop")
    script = f". env/{environment} && env -0"
    said = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path / "web_shop", check=True, capture_output=True, text=True, timeout=60
    ).stdout
    variables = dict(line.split("=", 1) for line in said.split("\0") if "=" in line)
    stores = [json.loads(variables[f"AIRFLOW_CONN_WEB_SHOP_{name}"]) for name in ("STORE", "DEAD_LETTERS")]

    assert [store["conn_type"] for store in stores] == ["homing", "homing"]
    urls = [store["password"] for store in stores]
    assert urls == [variables["HOMING_STORE"], variables["HOMING_DEAD_LETTER_STORE"]]
    with open_pipeline_stores(*urls) as opened:  # which connects to nothing
        assert (opened.store.name, opened.dead_letters.name) == ("web_shop", "web_shop_dead")
    assert json.loads(variables["AIRFLOW_CONN_SPARK_DEFAULT"])["conn_type"] == "spark"


_WITHOUT_AIRFLOW = """
import sys
sys.modules.update(dict.fromkeys(["airflow", "pyspark", "pyarrow", "pandas"]))  # as if not installed
import pytest
sys.exit(pytest.main(["-p", "no:cacheprovider", "-rs", "-q"]))
"""


def test_its_chain_is_tested_with_the_core_alone_and_the_test_of_its_dag_says_what_it_needs(
    homing: Shell, tmp_path: Path
) -> None:
    homing("new", "web_shop")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_AIRFLOW],
        cwd=tmp_path / "web_shop", env=environment, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed, 1 skipped" in done.stdout
    assert 'the DAG needs Airflow: pip install "homing[airflow,spark]"' in done.stdout
