"""The work directory: what one step of a run leaves for the next, until the run is settled.

It is a local path, or the URL of any file system that Spark's Hadoop can reach (`hdfs://…`, `s3a://…`). Names below it
are texts throughout: a URL is not a path of this machine.

Other users may be able to write there. So the ledger alone says which files are read, and has the digest of each.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, Protocol
from urllib.parse import unquote, urlsplit

from homing.delivery.private_folder import make_private_folder
from homing.errors import WorkDirError
from homing.ledger import Fence, Ledger

_OF_A_RUN = re.compile("-[0-9a-f]{12}$")
_ABANDONED_AFTER = 86_400  # seconds: no run leaves its files alone for so long
_LOCAL_HOSTS = ("", "localhost")
_PIECE = 2**20
_ANEW = ". Nothing of it was delivered: clear the task `process`, which writes it anew"
_OUTPUT = re.compile(r"processed-[A-Za-z0-9_-]+(/[A-Za-z0-9_-][A-Za-z0-9_.-]*)*")


class Folders(Protocol):
    """What a process without Spark needs of a file system. Names are absolute."""

    def make_folder(self, name: str) -> None:
        """Makes a folder that only its owner can read, and those above it; one that is there is fine."""

    def remove(self, name: str) -> None:
        """Removes a folder and all it holds; one that is not there is fine."""


class Files(Folders, Protocol):
    """What a Spark job needs of a file system, apart from what Spark itself reads and writes."""

    def has_folder(self, name: str) -> bool:
        """Whether there is a folder of this name."""

    def digest(self, name: str) -> str | None:
        """The SHA-256 of a file's bytes, in hexadecimal digits; None if the file does not exist."""

    def below(self, name: str) -> list[str]:
        """The names, from there on, of the files below a folder; without those that begin with `_` or `.`."""

    def folders(self, name: str) -> list[str]:
        """The names of the folders in this one; none when it is not there."""

    def move(self, source: str, target: str) -> None:
        """Gives a file another name, and makes the folders for it. A reader there finds the whole file or none."""


class LocalFiles:
    """The files of this machine."""

    def make_folder(self, name: str) -> None:
        make_private_folder(name)

    def has_folder(self, name: str) -> bool:
        return Path(name).is_dir()

    def digest(self, name: str) -> str | None:
        if not Path(name).is_file():
            return None
        with Path(name).open("rb") as file:
            return _digest_of(file)

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

    def __init__(self, place: str, files: Files, ledger: Ledger) -> None:
        """`files` is used if `place` is not on this machine. Files on this machine are read and written directly."""
        path = local_path(place)
        self._place = place if path is None else path
        self._files = files if path is None else LocalFiles()
        self._ledger = ledger

    def new_output(self, run_id: str, owner: str) -> str:
        """Where one try of a step writes: its own place, because an earlier try may still be writing to its."""
        self._files.make_folder(_batch_dir(self._place, run_id))  # it will hold what messages say
        return f"{_batch_dir(self._place, run_id)}/processed-{owner}"

    def publish(self, fence: Fence, parts: Sequence[str]) -> None:
        """Makes the files of these outputs, complete by now, the ones that the next steps read.

        Raises LeaseLostError when the step was taken over: then they are not to be read.
        """
        folder = _batch_dir(self._place, fence.run_id)
        names = [f"{part}/{name}" for part in parts for name in self._files.below(part)]
        self._ledger.publish(fence, {name.removeprefix(f"{folder}/"): self._digest(name) for name in names})

    def published(self, run_id: str) -> list[str] | None:
        """Returns the files of the last try that came to its end; there may be none.

        Returns None if no try came to its end, or the run has no directory here. Then the source flow is run again.
        """
        left = self._left(run_id)
        return None if left is None else list(left)

    def checked(self, run_id: str) -> list[str] | None:
        """Returns what `published` does. Raises WorkDirError if one of the files is missing, or was changed since."""
        left = self._left(run_id)
        if left is None:
            return None
        for name, digest in left.items():
            _require_same(name, self._digest(name), digest)
        return list(left)

    def _digest(self, name: str) -> str:
        found = self._files.digest(name)
        if found is None:
            raise WorkDirError(f"the work file {name} is missing{_ANEW}")
        return found

    def _left(self, run_id: str) -> Mapping[str, str] | None:
        left, folder = self._ledger.published(run_id), _batch_dir(self._place, run_id)
        if left is None or not self._files.has_folder(folder):
            return None
        if not all(map(_OUTPUT.fullmatch, left)):
            raise WorkDirError(f"the ledger names files outside {folder}: it was written by another program")
        return {f"{folder}/{name}": digest for name, digest in left.items()}

    def copies(self, run_id: str) -> Iterator[BinaryIO] | None:
        """Yields a copy of each file that `published` returns, on this machine; each is closed before the next one.

        No other user can reach a copy: so what is read is what was checked, even if the file is changed meanwhile.
        Returns None if `published` does.
        """
        left = self._left(run_id)
        return None if left is None else (copy for name, digest in left.items() for copy in _copy(name, digest))


def _copy(name: str, digest: str) -> Iterator[BinaryIO]:
    with tempfile.TemporaryFile() as copy:
        try:
            with Path(name).open("rb") as file:
                shutil.copyfileobj(file, copy, _PIECE)
        except OSError as error:
            raise WorkDirError(f"the work file {name} cannot be read: {error.strerror}{_ANEW}") from error
        copy.seek(0)
        _require_same(name, _digest_of(copy), digest)
        copy.seek(0)
        yield copy


def _require_same(name: str, found: str, left: str) -> None:
    if found != left:
        raise WorkDirError(f"the work file {name} is not what was left there: its digest is not the ledger's{_ANEW}")


def _digest_of(file: BinaryIO) -> str:
    digest = hashlib.sha256()
    while piece := file.read(_PIECE):
        digest.update(piece)
    return digest.hexdigest()


def require(place: str, elsewhere: Folders) -> None:
    """Raises WorkDirError unless the work directory is in a file system that can be written to. What is not on this
    machine is reached by `elsewhere`, here and below."""
    if local_path(place) is None:
        elsewhere.make_folder(place)


def remove(place: str, run_id: str, elsewhere: Folders) -> None:
    """Removes the run's directory. Idempotent: a step that finds nothing there runs the source flow itself.

    Raises WorkDirError when it cannot be reached.
    """
    path = local_path(place)
    if path is None:
        elsewhere.remove(_batch_dir(place, run_id))
    else:
        LocalFiles().remove(_batch_dir(path, run_id))


def erase(place: str, run_ids: Iterable[str], elsewhere: Folders) -> list[str]:
    """Removes the directories of these runs, and on this machine those that no run has touched for a day: who was
    killed may have left what messages say there. Their names, as far as it is known that they were there.

    Raises WorkDirError when one cannot be removed.
    """
    path = local_path(place)
    if path is None:
        for run_id in run_ids:
            elsewhere.remove(_batch_dir(place, run_id))
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
    except FileNotFoundError:  # another process works there
        return time.time()


def _batch_dir(place: str, run_id: str) -> str:
    """The run's own directory. Run ids hold characters that paths do not like, hence the digest."""
    readable = re.sub(r"[^A-Za-z0-9_-]+", "_", run_id)[-80:]
    return f"{place.rstrip('/')}/{readable}-{hashlib.sha256(run_id.encode()).hexdigest()[:12]}"
