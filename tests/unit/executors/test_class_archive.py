"""The JVM's class-data archive, with a plain Java program in the place of Spark."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from homing.errors import WorkDirError
from homing.spark.submit.class_archive import class_archive


def java(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["java", *shlex.split(environment["SPARK_SUBMIT_OPTS"]), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def loaded_from_archive(environment: dict[str, str]) -> bool:
    done = java(environment, "-Xlog:class+load:stdout", "-version")
    assert done.returncode == 0
    return "shared objects file (top)" in done.stdout


def test_made_on_first_use_used_afterwards_and_ignored_when_broken(tmp_path: Path) -> None:
    folder = tmp_path / "a cache"
    with class_archive(folder) as start:
        assert java(start.environment, "-version").returncode == 0
        start.had_session = True
    (archive,) = folder.iterdir()
    with class_archive(folder) as start:
        assert str(archive) in start.environment["SPARK_SUBMIT_OPTS"]
        assert loaded_from_archive(start.environment)

    archive.write_bytes(b"rubbish")
    with class_archive(folder) as start:
        assert not loaded_from_archive(start.environment)
        archive.unlink()
        assert not loaded_from_archive(start.environment)


def _run_and_fail(folder: Path) -> None:
    with class_archive(folder) as start:
        assert java(start.environment, "-version").returncode == 0
        start.had_session = True
        raise RuntimeError


def test_a_job_that_failed_never_ran_or_had_no_session_leaves_no_archive(tmp_path: Path) -> None:
    with class_archive(tmp_path) as start:
        start.had_session = True
    with class_archive(tmp_path) as start:
        assert java(start.environment, "-version").returncode == 0
    with pytest.raises(RuntimeError):
        _run_and_fail(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_what_was_set_already_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-Dmine=1 -XX:TieredStopAtLevel=4")
    with class_archive(tmp_path) as start:
        done = java(start.environment, "-XX:+PrintFlagsFinal", "-XshowSettings:properties", "-version")

    assert "mine = 1" in done.stderr
    assert re.search(r"TieredStopAtLevel\s+= 4 ", done.stdout)


def test_without_java_nothing_is_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "JAVA_HOME", str(tmp_path))
    with class_archive(tmp_path) as start:
        assert start.environment == {}


def test_an_archive_that_another_user_may_have_put_there_is_not_run(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    with class_archive(folder) as start:
        assert java(start.environment, "-version").returncode == 0
        start.had_session = True
    folder.chmod(0o777)

    with pytest.raises(WorkDirError, match="open to other users"), class_archive(folder):
        pytest.fail("the archive would have been used")
