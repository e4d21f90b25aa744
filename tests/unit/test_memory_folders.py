"""Folders in memory go with the process that made them, however it ends."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import memory_folders

ROOT = Path(__file__).parents[2]
MAKE_ONE = """
from tests import memory_folders
print(memory_folders.make("homing-test-"), flush=True)
input()
"""


@pytest.fixture
def other() -> Iterator[subprocess.Popen[str]]:
    """Another process that has made a folder."""
    with subprocess.Popen(
        [sys.executable, "-c", MAKE_ONE], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


@pytest.mark.skipif(not memory_folders.MEMORY.is_dir(), reason="there is no /dev/shm")
def test_the_folder_of_a_killed_process_is_removed_when_the_next_is_made(other: subprocess.Popen[str]) -> None:
    assert other.stdout is not None
    theirs = Path(other.stdout.readline().strip())
    (theirs / "data").write_bytes(b"x" * 100)
    memory_folders.remove(memory_folders.make("homing-test-"))
    assert (theirs / "data").exists(), "its process lives"

    other.send_signal(signal.SIGKILL)
    other.wait()
    memory_folders.remove(mine := memory_folders.make("homing-test-"))

    assert not theirs.exists()
    assert not mine.exists()


def test_own_folders_stay_when_another_is_made() -> None:
    first, second = memory_folders.make("homing-test-"), memory_folders.make("homing-test-")
    try:
        assert first.is_dir()
        assert second.is_dir()
    finally:
        memory_folders.remove(first)
        memory_folders.remove(second)


def test_where_memory_is_short_the_folder_lies_on_the_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(memory_folders, "_SPARE", 2**60)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    folder = memory_folders.make("homing-test-")

    assert folder.parent == tmp_path
    memory_folders.remove(folder)
