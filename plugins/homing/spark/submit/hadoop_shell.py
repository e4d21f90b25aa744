"""Hadoop's file systems for processes without Spark: Hadoop's own shell, from the jars that Spark brings.

So these processes use the same classes and the same settings in HADOOP_CONF_DIR as the Spark jobs do. Settings given to
a single job, as `spark.hadoop.*`, are not known here. Each call starts a JVM, and takes seconds.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from homing.errors import ConfigurationError, WorkDirError
from homing.spark.submit.java import require_java

_SHELL = "org.apache.hadoop.fs.FsShell"
# Hadoop tries for minutes to reach a server that is not there.
_PATIENCE = 120.0
# An empty core-site.xml: where there is none, the shell does not start. One in Spark's own conf/ is found before it.
_EMPTY_CONF = Path(__file__).with_name("empty_hadoop_conf")


def make_folder(name: str) -> None:
    """Makes the folder and those above it. Raises WorkDirError."""
    _run("-mkdir", "-p", name)


def remove(name: str) -> None:
    """Removes the folder and all it holds; one that is not there is fine. Raises WorkDirError."""
    _run("-rm", "-r", "-f", "-skipTrash", name)


def _run(*arguments: str) -> None:
    url, shell = arguments[-1], _spark_class()
    try:
        require_java()
        done = subprocess.run(  # noqa: S603 - no shell, and arguments of our own
            [shell, _SHELL, *arguments],
            env={"HADOOP_CONF_DIR": str(_EMPTY_CONF), **os.environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_PATIENCE,
            check=False,
        )
    except ConfigurationError as error:
        raise WorkDirError(f"the work directory {url} cannot be used: {error}") from error
    except subprocess.TimeoutExpired as error:
        raise WorkDirError(f"the work directory {url} was not reached within {_PATIENCE:.0f} seconds") from error
    if done.returncode:
        # Hadoop says "mkdir: why", or shows where it broke; whatever else is printed is its log.
        signs = (f"{arguments[0][1:]}: ", "Caused by: ", "Exception in thread")
        said = [line for line in done.stdout.splitlines() if line.startswith(signs)]
        why = said[-1] if said else done.stdout.strip()[-500:]
        raise WorkDirError(
            f"the work directory {url} cannot be used: {why}. Spark's jars must have its file system, and "
            "HADOOP_CONF_DIR its settings, wherever the pipeline's tasks run"
        )


def _spark_class() -> str:
    home = os.environ.get("SPARK_HOME")
    found = shutil.which("spark-class", path=str(Path(home, "bin")) if home else None)
    if found is None:
        raise WorkDirError("a work directory that is a URL needs spark-class, which comes with Spark, on the PATH")
    return found
