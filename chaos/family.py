"""Processes and their children, as the system knows them."""

from __future__ import annotations

import subprocess
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
