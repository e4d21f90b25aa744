"""Hadoop's file systems, through the JVM that a Spark job has anyway."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark import SparkContext

from homing.errors import WorkDirError

_OWNER_ONLY = "700"


class HadoopFiles:
    """Implements `homing.delivery.work.Files` for every URL that Spark can read and write. Needs no Spark session."""

    def make_folder(self, name: str) -> None:
        with _at(name) as (jvm, files, path):
            files.mkdirs(path, jvm.org.apache.hadoop.fs.permission.FsPermission(_OWNER_ONLY))

    def write(self, name: str, text: str) -> None:
        with _at(name) as (_, files, path):
            stream = files.create(path, True)
            try:
                stream.write(bytearray(text.encode()))
            finally:
                stream.close()

    def read(self, name: str) -> str | None:
        with _at(name) as (_, files, path):
            if not files.exists(path):
                return None
            stream = files.open(path)
            try:
                return bytes(stream.readAllBytes()).decode()
            finally:
                stream.close()


@contextmanager
def _at(name: str) -> Iterator[tuple[Any, Any, Any]]:
    """The JVM, the file system the name is in, and the name as Hadoop takes it."""
    SparkContext._ensure_initialized()  # noqa: SLF001 - the way to the JVM, before there is a session
    jvm: Any = SparkContext._jvm  # noqa: SLF001
    try:
        path = jvm.org.apache.hadoop.fs.Path(name)
        # Knows what the job was given as spark.hadoop.*
        settings = jvm.org.apache.spark.deploy.SparkHadoopUtil.get().conf()
        yield jvm, path.getFileSystem(settings), path
    except Py4JJavaError as error:
        raise WorkDirError(f"the work directory cannot be used: {name}: {error.java_exception}") from error
