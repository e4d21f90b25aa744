"""Scratch: where a job's JVM keeps what need not last. Parts of messages are among it, and Spark lets everybody read
them: so the folder is this user's alone."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def scratch_option() -> Iterator[str]:
    """The option of Java for such a folder, which is gone after the block. Where `spark.local.dir` or SPARK_LOCAL_DIRS
    say otherwise, they count."""
    # A job that is being ended may still write.
    with tempfile.TemporaryDirectory(prefix="homing-spark-", ignore_cleanup_errors=True) as folder:
        yield f'"-Djava.io.tmpdir={folder}"'
