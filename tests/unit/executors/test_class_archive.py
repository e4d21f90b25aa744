"""The JVM's class-data archive, with a plain Java program in the place of Spark."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from homing.errors import ConfigurationError, WorkDirError
from homing.spark.submit import class_archive as class_archive_module
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
    make(folder)
    (archive,) = folder.glob("*.jsa")
    with class_archive(folder) as start:
        assert str(archive) in start.environment["SPARK_SUBMIT_OPTS"]
        assert loaded_from_archive(start.environment)

    archive.write_bytes(b"rubbish")
    with class_archive(folder) as start:
        assert not loaded_from_archive(start.environment)
        archive.unlink()
        assert not loaded_from_archive(start.environment)


def make(folder: Path) -> None:
    with class_archive(folder) as start:
        assert java(start.environment, "-version").returncode == 0
        start.note_session()


def fail(folder: Path, error: type[BaseException]) -> None:
    with class_archive(folder) as start:
        assert java(start.environment, "-version").returncode == 0
        start.note_session()
        raise error


def archives(folder: Path) -> list[Path]:
    """What lies there, but for the empty file that is locked."""
    return [path for path in folder.iterdir() if path.suffix != ".lock"]


def test_a_job_that_never_ran_had_no_session_or_was_ended_leaves_no_archive(tmp_path: Path) -> None:
    with class_archive(tmp_path) as start:
        start.note_session()
    with class_archive(tmp_path) as start:
        assert java(start.environment, "-version").returncode == 0
    with pytest.raises(KeyboardInterrupt):
        fail(tmp_path, KeyboardInterrupt)
    assert archives(tmp_path) == []


def test_a_job_whose_messages_failed_leaves_its_archive(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "homing")
    with pytest.raises(RuntimeError):
        fail(tmp_path, RuntimeError)
    assert re.search(r"the class archive took \d+ s and \d+ MB, once", caplog.text)

    with class_archive(tmp_path) as start:
        assert loaded_from_archive(start.environment)
    with pytest.raises(RuntimeError):
        fail(tmp_path, RuntimeError)
    assert re.search(r"ready after \d+\.\d s with the class archive, and after \d+\.\d s without", caplog.text)


def test_only_one_job_at_a_time_makes_the_archive(tmp_path: Path) -> None:
    with class_archive(tmp_path) as first, class_archive(tmp_path) as second:
        assert "ArchiveClassesAtExit" in first.environment["SPARK_SUBMIT_OPTS"]
        assert not re.search("ArchiveClassesAtExit|SharedArchiveFile", second.environment["SPARK_SUBMIT_OPTS"])
    with class_archive(tmp_path) as third:
        assert "ArchiveClassesAtExit" in third.environment["SPARK_SUBMIT_OPTS"]


def test_each_installation_keeps_one_archive_and_leaves_those_of_others_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, homes = tmp_path / "cache", [tmp_path / "one", tmp_path / "two"]
    for home in homes:
        (home / "jars").mkdir(parents=True)
        (home / "jars" / "a.jar").write_bytes(b"a")
        monkeypatch.setenv("SPARK_HOME", str(home))
        make(folder)
    (before,) = set(folder.glob("*.jsa")) - {path for path in folder.glob("*.jsa") if path.name == _archive_name()}

    (homes[1] / "jars" / "a.jar").write_bytes(b"another")
    make(folder)

    assert {path.name for path in folder.glob("*.jsa")} == {before.name, _archive_name()}
    assert len(archives(folder)) == 4  # each with what is known of it


def _archive_name() -> str:
    return str(class_archive_module._name())


def test_the_archive_can_be_switched_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOMING_CLASS_ARCHIVE", "off")
    make(tmp_path)
    assert list(tmp_path.iterdir()) == []

    monkeypatch.setenv("HOMING_CLASS_ARCHIVE", "no")
    with pytest.raises(ConfigurationError, match="must be on or off, got 'no'"):
        make(tmp_path)


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
        start.note_session()
    folder.chmod(0o777)

    with pytest.raises(WorkDirError, match="open to other users"), class_archive(folder):
        pytest.fail("the archive would have been used")
