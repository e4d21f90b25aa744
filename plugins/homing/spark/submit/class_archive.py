"""The JVM's class-data archive. It spares a short Spark job the loading of classes, which takes most of its time.

The first job makes it as it ends, and later jobs use it. Nothing depends on it: the JVM ignores an archive that is
missing, broken, or made from other classes.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from homing.delivery.private_folder import cache_folder, make_private_folder

log = logging.getLogger(__name__)

# The better of Java's compilers takes most of a short job's processor time, and a batch is over before it has paid.
_QUICK = "-XX:TieredStopAtLevel=1"
# An option this JVM does not know, and whatever it has to say about an archive, must not matter.
_ALWAYS = "-XX:+IgnoreUnrecognizedVMOptions -Xshare:auto -Xlog:cds=off -Xlog:cds+dynamic=off -Xlog:class+path=off"


@dataclass
class Start:
    """How a `spark-submit` starts."""

    #: Its environment variables; empty where Java or Spark is not found.
    environment: dict[str, str]
    #: To be set once the job had a session: an archive made by one without would spare little, and stay.
    had_session: bool = False


@contextmanager
def class_archive(folder: Path | None = None) -> Iterator[Start]:
    """How to start a `spark-submit` inside the block: with the archive, or to make it.

    What is made becomes the archive when the job had a session and the block ends without an error.
    """
    folder = cache_folder() if folder is None else folder
    name = _name()
    if name is None:
        yield Start({})
        return
    archive = folder / name
    make_private_folder(folder)  # an archive is code: another user's would be run
    if archive.exists():
        yield Start(_environment(f"-XX:SharedArchiveFile={archive}"))
        return
    new = folder / f"{name}.{os.getpid()}"
    try:
        start = Start(_environment(f"-XX:ArchiveClassesAtExit={new}"))
        yield start
        if start.had_session:
            _keep(new, archive)
    finally:
        new.unlink(missing_ok=True)


def _keep(new: Path, archive: Path) -> None:
    if not new.is_file() or not new.stat().st_size:
        return
    for old in archive.parent.glob("spark-*.jsa"):  # of another Java or Spark, and large
        old.unlink(missing_ok=True)
    new.replace(archive)
    log.info("Spark will start faster from now on: %s", archive)


def _environment(option: str) -> dict[str, str]:
    quoted = f'"{option}"' if " " in option else option
    # Of two options that contradict each other Java takes the last: what the user says counts.
    said = [_QUICK, os.environ.get("SPARK_SUBMIT_OPTS"), _ALWAYS, quoted]
    return {"SPARK_SUBMIT_OPTS": " ".join(filter(None, said))}


def _name() -> str | None:
    """Says which Java and which Spark an archive is for."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=str(Path(home, "bin"))) if home else shutil.which("java")
    jars = _jars()
    if java is None or not jars:
        return None
    modules = Path(java).resolve().parents[1] / "lib" / "modules"
    seen = [modules, *jars] if modules.exists() else [Path(java).resolve(), *jars]
    text = "\n".join(f"{path} {path.stat().st_size} {path.stat().st_mtime_ns}" for path in seen)
    return f"spark-{hashlib.sha256(text.encode()).hexdigest()[:16]}.jsa"


def _jars() -> list[Path]:
    home = os.environ.get("SPARK_HOME")
    if home is None:
        spec = importlib.util.find_spec("pyspark")
        home = str(Path(spec.origin).parent) if spec is not None and spec.origin else ""
    return sorted(Path(home, "jars").glob("*.jar"))
