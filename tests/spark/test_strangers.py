"""A Spark on this machine listens on its network: it answers nobody there who does not belong to it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from tests.spark.conftest import Numbers

_PREFIX = "HOLDS "
#: A job that holds a message in its memory, and says where.
_JOB = f"""
import sys
from homing.spark.sessions import open_session
with open_session("holds a message") as spark:
    assert spark.sql("select 'a message' as content").cache().count() == 1
    (rdd,) = spark.sparkContext._jsc.getPersistentRDDs().keySet()
    place = spark.sparkContext._jvm.org.apache.spark.SparkEnv.get().blockManager().blockManagerId()
    print("{_PREFIX}", place.host(), place.port(), f"rdd_{{rdd}}_0", flush=True)
    sys.stdin.read()
"""


@contextmanager
def job(folder: Path, *settings: str) -> Iterator[tuple[str, int, str]]:
    """Where a job that runs has its message: host, port, and the name of the block."""
    (folder / "job.py").write_text(_JOB)
    submit = Path(sys.executable).with_name("spark-submit")
    told = ["spark.ui.enabled=false", "spark.log.level=ERROR", f"spark.sql.warehouse.dir={folder}", *settings]
    options = [word for setting in told for word in ("--conf", setting)]
    command = [str(submit), "--master", "local[1]", *options, str(folder / "job.py")]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            assert process.stdout is not None
            said = next((line for line in process.stdout if line.startswith(_PREFIX)), None)
            assert said is not None, "the job ended"
            host, port, block = said.removeprefix(_PREFIX).split()
            yield host, int(port), block
        finally:
            process.terminate()


def fetched(stranger: SparkSession, host: str, port: int, block: str) -> bytes:
    """What another Spark is given that asks for a block, as executors ask each other."""
    jvm: Any = stranger.sparkContext._jvm
    transfer = jvm.org.apache.spark.SparkEnv.get().blockManager().blockTransferService()
    return bytes(transfer.fetchBlockSync(host, port, "driver", block, None).nioByteBuffer().array())


@pytest.mark.timeout(600)
def test_a_stranger_is_not_given_the_messages_of_a_job_on_this_machine(spark: SparkSession, tmp_path: Path) -> None:
    with job(tmp_path) as place, pytest.raises(Py4JJavaError):
        fetched(spark, *place)

    # It asks in the right way: a job that is told to be open to all does answer it.
    with job(tmp_path, "spark.authenticate=false") as place:
        assert b"a message" in fetched(spark, *place)


@pytest.mark.parametrize(
    "said",
    ["StoreUnavailableError", "homing.errors.LeaseLostError: x", "[SPARK_JOB_CANCELLED]", "ExecutorLostFailure"],
)
def test_a_message_that_speaks_like_an_outage_or_a_crash_is_found_and_the_rest_goes_on(
    natively: Numbers, said: str
) -> None:
    """Spark's errors quote values: this one cannot be cast to a number."""
    batch = natively.claim("run", {"n": 0, "amount": "1"}, {"n": 2, "amount": said}, {"n": 4, "amount": "1"})

    natively.run_all(batch)

    settlement = batch.settle()
    assert (settlement.acknowledged, settlement.failed) == (2, 1)
