"""Processes and their children, as the system knows them."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def family(pid: int) -> list[int]:
    """A process and all that came from it, the eldest first."""
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False).stdout.split()
    return [pid, *(one for child in found for one in family(int(child)))]


def command_of(pid: int) -> str:
    """How a process was called, or calls itself; empty when it is gone."""
    try:
        return Path("/proc", str(pid), "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def is_stopped(pid: int) -> bool:
    return _state(pid) == "T"


def is_gone(pid: int) -> bool:
    """Whether it is dead, be it that nobody has asked how."""
    return _state(pid) in ("", "Z", "X")


def _state(pid: int) -> str:
    try:
        return Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


@contextmanager
def stopped(pids: list[int]) -> Iterator[None]:
    """These processes, stopped."""
    for one in pids:
        with suppress(ProcessLookupError):
            os.kill(one, signal.SIGSTOP)
    try:
        yield
    finally:
        for one in pids:
            with suppress(ProcessLookupError):
                os.kill(one, signal.SIGCONT)
