"""scripts/setup.sh: what it installs for whom, with a Python in its place that writes down what it is told to do."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from demo.room import MEMORY, check_room
from demo.stack import StackError

REPOSITORY = Path(__file__).parents[2]
PYTHON = """#!/usr/bin/env bash
case "$*" in
    *version_info*) echo 3.11 ;;
    *"-m venv"*) mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
    *"-m pip"*) echo "${@: -1}" >>installed ;;
esac
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    (tmp_path / "scripts").mkdir()
    for name in ("pyproject.toml", "constraints.txt", "scripts/setup.sh"):
        shutil.copy(REPOSITORY / name, tmp_path / name)
    program(tmp_path, "python-that-records", PYTHON)
    has_free(tmp_path, 100_000)
    return tmp_path


def program(clone: Path, name: str, text: str) -> None:
    path = clone / "bin" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def has_free(clone: Path, megabytes: int) -> None:
    program(clone, "df", f"#!/bin/sh\nprintf 'Avail\\n{megabytes}\\n'\n")


def set_up(clone: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = f"{clone / 'bin'}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHON": "python-that-records"}
    command = ["bash", str(clone / "scripts" / "setup.sh"), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def installed(clone: Path) -> list[str]:
    file = clone / "installed"
    return file.read_text().split() if file.exists() else []


def test_the_demo_gets_what_it_needs_and_the_tests_bring_the_rest(clone: Path) -> None:
    assert set_up(clone).returncode == 0
    assert installed(clone) == [".[airflow,spark]"]
    for arguments in ([], ["--dev"], ["--dev"], []):
        done = set_up(clone, *arguments)
        assert done.returncode == 0, done.stderr
    assert installed(clone) == [".[airflow,spark]", ".[dev]"]


def test_a_disk_without_room_is_said_before_anything_is_installed(clone: Path) -> None:
    has_free(clone, 2_000)

    done = set_up(clone)

    assert done.returncode == 1
    assert f"there is no room: the packages need 3000 MB in {clone}, and 2000 MB are free" in done.stderr
    assert installed(clone) == []


def test_what_is_installed_already_needs_no_room(clone: Path) -> None:
    set_up(clone)
    has_free(clone, 10)

    assert set_up(clone).returncode == 0


def test_the_first_line_of_the_demo_says_how_long_it_takes() -> None:
    done = subprocess.run(
        # Below another make, as in `make test`, it would say first where it is.
        ["make", "--no-print-directory", "-n", "demo"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )

    first, second, *_ = done.stdout.splitlines()
    assert "takes about two minutes" in first
    assert second == "scripts/setup.sh"


def test_a_machine_without_memory_for_the_stack_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 2000000 kB\nMemAvailable: 1000000 kB\n")
    assert check_room(tmp_path, meminfo).startswith("this machine has 1024 MB of memory to spare")
    meminfo.write_text(f"MemAvailable: {MEMORY * 1000} kB\n")
    assert not check_room(tmp_path, meminfo)
    assert not check_room(tmp_path, tmp_path / "not-there")

    full = shutil._ntuple_diskusage(10, 10, 0)  # type: ignore[attr-defined]
    monkeypatch.setattr(shutil, "disk_usage", lambda _: full)
    with pytest.raises(StackError, match="there is no room"):
        check_room(tmp_path / "not" / "there", meminfo)
