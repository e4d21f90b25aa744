"""The work directory: what one step of a run leaves for the next, until the run is settled."""

from __future__ import annotations

import hashlib
import re
import shutil


def batch_dir(work_dir: str, run_id: str) -> str:
    """The run's own directory. Run ids hold characters that paths do not like, hence the digest."""
    readable = re.sub(r"[^A-Za-z0-9_-]+", "_", run_id)[-80:]
    return f"{work_dir.rstrip('/')}/{readable}-{hashlib.sha256(run_id.encode()).hexdigest()[:12]}"


def processed_path(work_dir: str, run_id: str) -> str:
    """Where the source flow leaves its messages for the destinations."""
    return f"{batch_dir(work_dir, run_id)}/processed"


def remove(work_dir: str, run_id: str) -> None:
    """Removes the run's directory. Idempotent: a step that finds nothing there runs the source flow itself."""
    shutil.rmtree(batch_dir(work_dir, run_id), ignore_errors=True)
