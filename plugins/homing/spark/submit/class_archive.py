"""The JVM's class-data archive. It spares a short Spark job the loading of classes, which takes most of its time.

The first job makes it as it ends, and later jobs use it. Nothing depends on it: the JVM ignores an archive that is
missing, broken, or made from other classes. Each installation of Spark and Java has one of its own.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import json
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from homing.delivery.private_folder import cache_folder, make_private_folder
from homing.errors import ConfigurationError
from homing.spark.submit.java import find_java

log = logging.getLogger(__name__)

#: The environment variable that says whether archives are made and used: on, unless it says off.
SETTING = "HOMING_CLASS_ARCHIVE"

# The better of Java's compilers takes most of a short job's processor time, and a batch is over before it has paid.
_QUICK = "-XX:TieredStopAtLevel=1"
# An option this JVM does not know, and whatever it has to say about an archive, must not matter.
_ALWAYS = "-XX:+IgnoreUnrecognizedVMOptions -Xshare:auto -Xlog:cds=off -Xlog:cds+dynamic=off -Xlog:class+path=off"


class Start:
    """How a `spark-submit` starts, and what was seen of it since."""

    __slots__ = ("_began", "_said_last", "environment", "ready_after")

    def __init__(self, environment: dict[str, str]) -> None:
        #: Its environment variables; empty where Java or Spark is not found.
        self.environment = environment
        #: Seconds until the job had a session; None as long as it has none. An archive made by a job without one would
        #: spare little, and stay.
        self.ready_after: float | None = None
        self._began = self._said_last = time.monotonic()

    def note_session(self) -> None:
        """The job has its session."""
        if self.ready_after is None:
            self.ready_after = time.monotonic() - self._began

    def note_line(self) -> None:
        """The job said something."""
        self._said_last = time.monotonic()

    @property
    def silent_for(self) -> float:
        """Seconds since the job said something."""
        return time.monotonic() - self._said_last


@contextmanager
def class_archive(folder: Path | None = None, *, options: str = "") -> Iterator[Start]:
    """How to start a `spark-submit` inside the block: with the archive, or to make it, or with neither while another
    job makes it; and with these options of Java.

    What is made becomes the archive when the job had a session, whether or not it did what it was to do.
    """
    folder = cache_folder() if folder is None else folder
    name = _name()
    if name is None or not _is_wanted():
        yield Start({} if name is None else _environment(options))
        return
    archive = folder / name
    make_private_folder(folder)  # an archive is code: another user's would be run
    if not archive.exists():
        with _only_maker(archive) as alone:
            if not archive.exists():
                with _making(archive, options) if alone else nullcontext(Start(_environment(options))) as start:
                    yield start
                return
    start = Start(_environment(options, f"-XX:SharedArchiveFile={archive}"))
    try:
        yield start
    finally:
        _tell_gain(archive, start)


def _is_wanted() -> bool:
    said = os.environ.get(SETTING, "on")
    if said not in {"on", "off"}:
        raise ConfigurationError(f"{SETTING} must be on or off, got {said!r:.80}")
    return said == "on"


@contextmanager
def _only_maker(archive: Path) -> Iterator[bool]:
    """Whether this process alone may make the archive, while the block lasts. The lock ends with the process."""
    descriptor = os.open(archive.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log.info("another job makes the class archive: this one starts without it")
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)


@contextmanager
def _making(archive: Path, options: str) -> Iterator[Start]:
    new = archive.with_name(f"{archive.name}.{os.getpid()}")
    log.info(
        "as it ends, this job makes the class archive, by which later Spark jobs start sooner; it takes seconds, and a "
        "minute or two on a busy machine (%s=off spares it)",
        SETTING,
    )
    start = Start(_environment(options, f"-XX:ArchiveClassesAtExit={new}"))
    try:
        yield start
    except Exception:
        _keep(new, archive, start)  # the messages failed, not the job
        raise
    else:
        _keep(new, archive, start)
    finally:
        new.unlink(missing_ok=True)  # of a job that was ended, or had no session


def _keep(new: Path, archive: Path, start: Start) -> None:
    if start.ready_after is None or not new.is_file() or not new.stat().st_size:
        return
    place = archive.name.rpartition("-")[0]
    for old in archive.parent.glob(f"{place}-*"):  # of this installation before it was changed, and large
        if old.suffix != ".lock" and old != new:
            old.unlink(missing_ok=True)
    archive.with_suffix(".json").write_text(json.dumps({"ready_after": start.ready_after}))
    new.replace(archive)
    megabytes = archive.stat().st_size / 1e6
    log.info("the class archive took %.0f s and %.0f MB, once: %s", start.silent_for, megabytes, archive)


def _tell_gain(archive: Path, start: Start) -> None:
    if start.ready_after is None:
        return
    try:
        before = float(json.loads(archive.with_suffix(".json").read_text())["ready_after"])
    except (OSError, ValueError, KeyError, TypeError):
        return
    log.info("Spark was ready after %.1f s with the class archive, and after %.1f s without", start.ready_after, before)


def _environment(options: str, option: str = "") -> dict[str, str]:
    quoted = f'"{option}"' if " " in option else option
    # Of two options that contradict each other Java takes the last: what the user says counts.
    said = [_QUICK, options, os.environ.get("SPARK_SUBMIT_OPTS"), _ALWAYS, quoted]
    return {"SPARK_SUBMIT_OPTS": " ".join(filter(None, said))}


def _name() -> str | None:
    """Says which installation an archive is for, and which state of its Java and its Spark."""
    java, jars = find_java(), _jars()
    if java is None or not jars:
        return None
    modules = java.resolve().parents[1] / "lib" / "modules"
    seen = [modules if modules.exists() else java.resolve(), *jars]
    place = "\n".join(str(path) for path in (seen[0], jars[0].parent))
    state = "\n".join(f"{path} {path.stat().st_size} {path.stat().st_mtime_ns}" for path in seen)
    return f"spark-{_digest(place)}-{_digest(state)}.jsa"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _jars() -> list[Path]:
    home = os.environ.get("SPARK_HOME")
    if home is None:
        spec = importlib.util.find_spec("pyspark")
        home = str(Path(spec.origin).parent) if spec is not None and spec.origin else ""
    return sorted(Path(home, "jars").glob("*.jar"))
