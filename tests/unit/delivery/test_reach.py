"""What reaches executors on other machines, and what cannot."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from homing.delivery.reach import build_py_files, is_local, refuse_unreachable
from homing.errors import ConfigurationError

SQLITE = "sqlite:////data/inbox.db?store=orders"
SERVER = "postgresql://127.0.0.1/homing?store=orders"


@pytest.mark.parametrize("master", ["local", "local[2]", "local[*]", "local[2,3]"])
def test_sqlite_is_fine_where_everything_runs_on_one_machine(master: str) -> None:
    assert is_local(master)
    refuse_unreachable(master, SQLITE, SQLITE)


@pytest.mark.parametrize("master", ["spark://host:7077", "yarn", "k8s://https://host", "localhost"])
def test_sqlite_is_refused_where_executors_run_elsewhere(master: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORDERS", SQLITE)
    refuse_unreachable(master, SERVER, SERVER)
    for urls in ((SERVER, SQLITE), ("env:ORDERS", SERVER)):
        with pytest.raises(ConfigurationError, match=r"SQLite is a file on one machine.*PostgreSQL"):
            refuse_unreachable(master, *urls)


def test_the_package_and_the_chain_run_from_the_zip_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chains = tmp_path / "chains"
    chains.mkdir()
    (chains / "shipped_chain.py").write_text("import homing.spark.steps\nfrom homing import destination\n")
    monkeypatch.syspath_prepend(chains)

    first = build_py_files(tmp_path / "cache", "shipped_chain")
    again = build_py_files(tmp_path / "cache", "shipped_chain")

    assert first == again
    assert {"shipped_chain.py", "homing/__init__.py", "homing/stores/sql/store.py"} <= set(
        zipfile.ZipFile(first).namelist()
    )
    script = f"import sys; sys.path.insert(0, {str(first)!r}); import shipped_chain, homing; print(homing.__file__)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert done.stdout.startswith(str(first))


def test_code_that_changes_makes_another_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chain = tmp_path / "changing_chain.py"
    monkeypatch.syspath_prepend(tmp_path)
    chain.write_text("n = 1\n")
    first = build_py_files(tmp_path / "cache", "changing_chain")
    chain.write_text("n = 2\n")
    assert build_py_files(tmp_path / "cache", "changing_chain") != first


def test_a_module_without_a_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no_such_chain"):
        build_py_files(tmp_path, "no_such_chain")
