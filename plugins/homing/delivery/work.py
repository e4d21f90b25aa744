"""The work directory: what one step of a run leaves for the next, until the run is settled."""

from __future__ import annotations

import hashlib
import re
import shutil
import uuid
from collections.abc import Sequence
from pathlib import Path

_PUBLISHED = "published"


def batch_dir(work_dir: str, run_id: str) -> Path:
    """The run's own directory. Run ids hold characters that paths do not like, hence the digest."""
    readable = re.sub(r"[^A-Za-z0-9_-]+", "_", run_id)[-80:]
    return Path(work_dir) / f"{readable}-{hashlib.sha256(run_id.encode()).hexdigest()[:12]}"


def new_output(work_dir: str, run_id: str, owner: str) -> Path:
    """Where one try of a step writes: its own place, because an earlier try may still be writing to its."""
    folder = batch_dir(work_dir, run_id)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # it will hold what messages say
    return folder / f"processed-{owner}"


def publish(work_dir: str, run_id: str, parts: Sequence[Path]) -> None:
    """Makes these outputs, complete by now, the ones that the next steps read. Atomic."""
    folder = batch_dir(work_dir, run_id)
    new = folder / f"{_PUBLISHED}.{uuid.uuid4()}"
    new.write_text("".join(f"{part.relative_to(folder)}\n" for part in parts))
    new.replace(folder / _PUBLISHED)


def published(work_dir: str, run_id: str) -> list[Path] | None:
    """The outputs of the last try that came to its end, of which there may be none; None when no try did."""
    folder = batch_dir(work_dir, run_id)
    try:
        return [folder / name for name in (folder / _PUBLISHED).read_text().splitlines()]
    except FileNotFoundError:
        return None


def remove(work_dir: str, run_id: str) -> None:
    """Removes the run's directory. Idempotent: a step that finds nothing there runs the source flow itself."""
    shutil.rmtree(batch_dir(work_dir, run_id), ignore_errors=True)
