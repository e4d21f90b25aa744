"""Whether this machine has room for the demo's stack: said before it starts, not when something was killed."""

from __future__ import annotations

import shutil
from pathlib import Path

from demo.stack import StackError

#: What Airflow, two Spark jobs and their stores need at least, in megabytes.
DISK, MEMORY = 1000, 3000
MEMINFO = Path("/proc/meminfo")


def check_room(home: Path, meminfo: Path = MEMINFO) -> str:
    """What there is to warn of; nothing where there is room. Raises StackError where the disk is full: nothing could be
    written down."""
    place = next(folder for folder in (home, *home.parents) if folder.exists())
    free = shutil.disk_usage(place).free // 1_000_000
    if free < DISK:
        raise StackError(f"there is no room: the stack needs {DISK} MB in {place}, and {free} MB are free")
    available = _available_memory(meminfo)
    if available is None or available >= MEMORY:
        return ""
    return (
        f"this machine has {available} MB of memory to spare, and the stack needs about {MEMORY} MB: it may be "
        "slow, or processes of it may be killed; end others first"
    )


def _available_memory(meminfo: Path) -> int | None:
    """In megabytes; None on a machine that does not say."""
    try:
        lines = meminfo.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 // 1_000_000 for line in lines if line.startswith("MemAvailable:")), None)
