"""Hadoop's file systems, through the JVM that a Spark job has anyway."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark import SparkContext

from homing.errors import HomingError, WorkDirError

_OWNER_ONLY = "700"


@dataclass(frozen=True)
class HadoopFiles:
    """Implements `delivery.work_files.Files` for each URL that Spark can read and write. Needs no Spark session."""

    #: What lies there, for those who read why it cannot be used, and what is raised then.
    what: str = "work directory"
    error: type[HomingError] = WorkDirError

    def make_folder(self, name: str) -> None:
        with self._at(name) as (jvm, files, path):
            files.mkdirs(path, jvm.org.apache.hadoop.fs.permission.FsPermission(_OWNER_ONLY))

    def has_folder(self, name: str) -> bool:
        with self._at(name) as (_, files, path):
            return bool(files.exists(path))

    def digest(self, name: str) -> str | None:
        with self._at(name) as (jvm, files, path):
            if not files.exists(path):
                return None
            stream = files.open(path)
            try:
                # In the JVM, which brings this along, and piece by piece: no byte of the file comes here.
                return str(jvm.org.apache.commons.codec.digest.DigestUtils.sha256Hex(stream))
            finally:
                stream.close()

    def below(self, name: str) -> list[str]:
        with self._at(name) as (_, files, path):
            root, found = files.makeQualified(path).toUri().getPath(), []
            listed = files.listFiles(path, True)
            while listed.hasNext():
                found.append(listed.next().getPath())
            names = [each.toUri().getPath().removeprefix(f"{root}/") for each in found]
            return sorted(each for each in names if not each.rpartition("/")[2].startswith(("_", ".")))

    def folders(self, name: str) -> list[str]:
        with self._at(name) as (_, files, path):
            found = files.listStatus(path) if files.exists(path) else ()
            return sorted(each.getPath().getName() for each in found if each.isDirectory())

    def move(self, source: str, target: str) -> None:
        with self._at(target) as (jvm, files, path):
            files.mkdirs(path.getParent())
            if not files.rename(jvm.org.apache.hadoop.fs.Path(source), path):
                raise self.error(f"the {self.what} cannot be used: {source} could not be moved to {target}")

    def remove(self, name: str) -> None:
        with self._at(name) as (_, files, path):
            files.delete(path, True)

    @contextmanager
    def _at(self, name: str) -> Iterator[tuple[Any, Any, Any]]:
        """The JVM, the file system the name is in, and the name as Hadoop takes it."""
        SparkContext._ensure_initialized()  # noqa: SLF001 - the way to the JVM, before there is a session
        jvm: Any = SparkContext._jvm  # noqa: SLF001
        try:
            path = jvm.org.apache.hadoop.fs.Path(name)
            # Knows what the job was given as spark.hadoop.*
            settings = jvm.org.apache.spark.deploy.SparkHadoopUtil.get().conf()
            yield jvm, path.getFileSystem(settings), path
        except Py4JJavaError as error:
            raise self.error(f"the {self.what} cannot be used: {name}: {error.java_exception}") from error
