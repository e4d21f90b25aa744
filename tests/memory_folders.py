"""Folders in memory, where forcing a commit to the disk costs nothing. A run that was killed cannot remove its own;
the next run does, so that they never fill the memory of the machine."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MEMORY = Path("/dev/shm")  # noqa: S108
#: What must be left to everything else on the machine, in bytes.
_SPARE = 6 * 1024**3
_OWNER = ".owner"

#: The locks of this process's folders: open for as long as it lives, so that the kernel says who has died.
_held: dict[Path, int] = {}


def make(prefix: str) -> Path:
    """A new folder in memory, or on the disk where memory is short."""
    if not MEMORY.is_dir():
        return Path(tempfile.mkdtemp(prefix=prefix))
    with _one_at_a_time():
        _sweep()
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=MEMORY if _available() > _SPARE else None))
        lock = os.open(folder / _OWNER, os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        _held[folder] = lock
    return folder


def remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    if (lock := _held.pop(folder, None)) is not None:
        os.close(lock)


def _sweep() -> None:
    for owner in MEMORY.glob(f"homing-*/{_OWNER}"):
        if owner.parent not in _held and _is_left(owner):
            shutil.rmtree(owner.parent, ignore_errors=True)


def _is_left(owner: Path) -> bool:
    try:
        lock = os.open(owner, os.O_RDWR)
    except OSError:  # removed just now, or another user's
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return True


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Between making a folder and locking it, nobody may take it for a dead process's."""
    lock = os.open(MEMORY / f"homing-{os.geteuid()}.lock", os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _available() -> int:
    """Bytes that programs could still have: files in memory count as used, which the free pages of /dev/shm do not
    say."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
