"""Java, which Spark runs on: where it is, and what to say where it is not."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from homing.errors import ConfigurationError

#: The oldest Java that Spark 4 runs on.
OLDEST = 17

_RELEASE = re.compile(r'^JAVA_VERSION="(\d+)', re.MULTILINE)
_HOW = (
    f"install Java {OLDEST} or newer, on Debian and Ubuntu with "
    f"`sudo apt-get install openjdk-{OLDEST}-jre-headless`, or set JAVA_HOME to where it is"
)


def find_java() -> Path | None:
    """The program `java` that Spark's own scripts would start; None where there is none."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=str(Path(home, "bin"))) if home else shutil.which("java")
    return None if found is None else Path(found)


def require_java() -> None:
    """Raises ConfigurationError, which says how to get it, where Spark would find no Java or one that is too old.

    Says nothing where Spark has a spark-env.sh, which may name another.
    """
    if _has_own_environment():
        return
    java = find_java()
    if java is None:
        where = f"JAVA_HOME is {os.environ['JAVA_HOME']}" if os.environ.get("JAVA_HOME") else "none is on the PATH"
        raise ConfigurationError(f"Spark needs Java, and there is none: {where}; {_HOW}")
    version = _version_of(java)
    if version is not None and version < OLDEST:
        raise ConfigurationError(f"Spark does not run on Java {version}, which {java} is: {_HOW}")


def _version_of(java: Path) -> int | None:
    """The version by the file that lies beside every Java; None where it is not there or says nothing."""
    try:
        said = _RELEASE.search((java.resolve().parents[1] / "release").read_text())
    except OSError:
        return None
    return None if said is None else int(said[1])


def _has_own_environment() -> bool:
    home, folder = os.environ.get("SPARK_HOME"), os.environ.get("SPARK_CONF_DIR")
    folders = [Path(folder)] if folder else [Path(home, "conf")] if home else []
    return any((each / "spark-env.sh").is_file() for each in folders)
