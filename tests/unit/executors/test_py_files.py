"""What reaches executors on other machines, and what cannot."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from homing.errors import ConfigurationError, WorkDirError
from homing.spark.submit.master import is_local, refuse_unreachable
from homing.spark.submit.py_files import build_py_files

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
    (chains / "shipped_chain.py").write_text("import homing.spark.task\nfrom homing import destination\n")
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


def test_modules_that_the_chain_imports_from_its_folder_travel_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chains = tmp_path / "chains"
    (chains / "prices").mkdir(parents=True)
    (chains / "helped_chain.py").write_text("import msgspec\nfrom helped_rules import price\n")
    (chains / "helped_rules.py").write_text("from prices.tables import price\n")
    (chains / "prices" / "__init__.py").write_text("")
    (chains / "prices" / "tables.py").write_text("price = 5\n")
    (chains / "unrelated.py").write_text("raise RuntimeError('this is nobody's')\n")
    monkeypatch.syspath_prepend(chains)

    sent = build_py_files(tmp_path / "cache", "helped_chain")

    names = {name for name in zipfile.ZipFile(sent).namelist() if not name.startswith("homing/")}
    assert names == {"helped_chain.py", "helped_rules.py", "prices/__init__.py", "prices/tables.py"}


def test_of_an_installed_chain_nothing_else_that_is_installed_travels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / "site-packages"
    installed.mkdir()
    (installed / "installed_chain.py").write_text("import installed_library\n")
    (installed / "installed_library.py").write_text("")
    monkeypatch.syspath_prepend(installed)

    sent = build_py_files(tmp_path / "cache", "installed_chain")

    names = set(zipfile.ZipFile(sent).namelist())
    assert "installed_chain.py" in names
    assert "installed_library.py" not in names


def test_only_modules_are_sent_and_no_secret_that_lies_beside_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "secretive"
    package.mkdir()
    for name in ("__init__.py", "chain.py", ".env", "key.pem", "data.json"):
        (package / name).write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))

    sent = zipfile.ZipFile(build_py_files(tmp_path / "cache", "secretive")).namelist()

    assert {name for name in sent if name.startswith("secretive/")} == {"secretive/__init__.py", "secretive/chain.py"}
    assert all(name.endswith((".py", ".so")) for name in sent)


def test_a_zip_that_another_user_may_have_put_there_is_not_sent(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    build_py_files(folder)
    folder.chmod(0o777)

    with pytest.raises(WorkDirError, match="open to other users"):
        build_py_files(folder)
