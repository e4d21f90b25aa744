"""The work directory: what one step of a run leaves for the next, until the run is settled.

It is a local path, or the URL of any file system that Spark's Hadoop can reach (`hdfs://…`, `s3a://…`). Names below it
are texts throughout: a URL is no path of this machine.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

from homing.delivery import hadoop_shell
from homing.delivery.private_folder import make_private_folder
from homing.errors import WorkDirError

_PUBLISHED = "published"
_OF_A_RUN = re.compile("-[0-9a-f]{12}$")
_ABANDONED_AFTER = 86_400  # seconds: no run leaves its files alone for so long
_LOCAL_HOSTS = ("", "localhost")
_OUTPUT = re.compile(r"processed-[A-Za-z0-9_-]+(/[A-Za-z0-9_-][A-Za-z0-9_.-]*)*")


class Files(Protocol):
    """A file system, as far as the Spark jobs need one beside Spark. Names are absolute."""

    def make_folder(self, name: str) -> None:
        """Makes a folder that only its owner can read, and those above it; one that is there is fine."""

    def write(self, name: str, text: str) -> None:
        """Replaces the file. A reader may find it half written, in which case the text is cut short."""

    def read(self, name: str) -> str | None:
        """The file's text; None when there is none."""

    def below(self, name: str) -> list[str]:
        """The names, from there on, of the files below a folder; without those that begin with `_` or `.`."""

    def folders(self, name: str) -> list[str]:
        """The names of the folders in this one; none when it is not there."""

    def move(self, source: str, target: str) -> None:
        """Gives a file another name, and makes the folders for it. Who reads there finds all of it, or nothing."""

    def remove(self, name: str) -> None:
        """Removes a folder and all it holds; one that is not there is fine."""


class LocalFiles:
    """The files of this machine."""

    def make_folder(self, name: str) -> None:
        make_private_folder(name)

    def write(self, name: str, text: str) -> None:
        Path(name).write_text(text)

    def read(self, name: str) -> str | None:
        try:
            return Path(name).read_text()
        except FileNotFoundError:
            return None

    def below(self, name: str) -> list[str]:
        files = [path for path in Path(name).rglob("*") if path.is_file() and not path.name.startswith(("_", "."))]
        return sorted(str(path.relative_to(name)) for path in files)

    def folders(self, name: str) -> list[str]:
        return sorted(path.name for path in Path(name).glob("*/"))

    def move(self, source: str, target: str) -> None:
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        Path(source).rename(target)

    def remove(self, name: str) -> None:
        shutil.rmtree(name, ignore_errors=True)


def local_path(work_dir: str) -> str | None:
    """The path of a work directory on this machine, also if written as `file://`; None for a URL of another kind."""
    url = urlsplit(work_dir)
    if url.scheme == "file" and url.netloc in _LOCAL_HOSTS:
        return unquote(url.path)
    return None if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/", work_dir) else work_dir


class WorkDir:
    """One pipeline's work directory, as its Spark jobs use it."""

    def __init__(self, place: str, files: Files) -> None:
        """`files` is for a place elsewhere; what is on this machine is read and written directly."""
        path = local_path(place)
        self._place = place if path is None else path
        self._files = files if path is None else LocalFiles()

    def new_output(self, run_id: str, owner: str) -> str:
        """Where one try of a step writes: its own place, because an earlier try may still be writing to its."""
        self._files.make_folder(_batch_dir(self._place, run_id))  # it will hold what messages say
        return f"{_batch_dir(self._place, run_id)}/processed-{owner}"

    def publish(self, run_id: str, parts: Sequence[str]) -> None:
        """Makes these outputs, complete by now, the ones that the next steps read."""
        folder = _batch_dir(self._place, run_id)
        names = [part.removeprefix(f"{folder}/") for part in parts]
        self._files.write(f"{folder}/{_PUBLISHED}", json.dumps(names))

    def published(self, run_id: str) -> list[str] | None:
        """The outputs of the last try that came to its end, of which there may be none; None when no try did."""
        folder = _batch_dir(self._place, run_id)
        try:
            names = json.loads(self._files.read(f"{folder}/{_PUBLISHED}") or "")
        except ValueError:  # not there, or not all of it: then the source flow is run again
            return None
        if not isinstance(names, list) or not all(_is_plain(name) for name in names):
            raise WorkDirError(f"{folder}/{_PUBLISHED} names something outside its folder: somebody else wrote it")
        return [f"{folder}/{name}" for name in names]


def _is_plain(name: object) -> bool:
    """Whether this is the name of an output, or of a part of one, below the run's own directory."""
    return isinstance(name, str) and _OUTPUT.fullmatch(name) is not None


def require(place: str) -> None:
    """Raises WorkDirError unless the work directory is in a file system that can be written to."""
    if local_path(place) is None:
        hadoop_shell.make_folder(place)


def remove(place: str, run_id: str) -> None:
    """Removes the run's directory. Idempotent: a step that finds nothing there runs the source flow itself.

    Raises WorkDirError when it cannot be reached.
    """
    path = local_path(place)
    if path is None:
        hadoop_shell.remove(_batch_dir(place, run_id))
    else:
        shutil.rmtree(_batch_dir(path, run_id), ignore_errors=True)


def erase(place: str, run_ids: Iterable[str]) -> list[str]:
    """Removes the directories of these runs, and on this machine those that no run has touched for a day: who was
    killed may have left what messages say there. Their names, as far as it is known that they were there.

    Raises WorkDirError when one cannot be removed.
    """
    path = local_path(place)
    if path is None:
        for run_id in run_ids:
            hadoop_shell.remove(_batch_dir(place, run_id))
        return []
    mine = {Path(_batch_dir(path, run_id)) for run_id in run_ids}
    idle = time.time() - _ABANDONED_AFTER
    left = {each for each in Path(path).glob("*/") if _OF_A_RUN.search(each.name) and _touched(each) < idle}
    erased = sorted(each for each in mine | left if each.exists())
    for each in erased:
        try:
            shutil.rmtree(each)
        except OSError as error:
            raise WorkDirError(f"the folder {each} of a run cannot be removed: {error.strerror}") from error
    return [str(each) for each in erased]


def _touched(folder: Path) -> float:
    try:
        return max(each.lstat().st_mtime for each in (folder, *folder.rglob("*")))
    except FileNotFoundError:  # somebody is at work there
        return time.time()


def _batch_dir(place: str, run_id: str) -> str:
    """The run's own directory. Run ids hold characters that paths do not like, hence the digest."""
    readable = re.sub(r"[^A-Za-z0-9_-]+", "_", run_id)[-80:]
    return f"{place.rstrip('/')}/{readable}-{hashlib.sha256(run_id.encode()).hexdigest()[:12]}"
