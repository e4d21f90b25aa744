"""What Spark keeps of messages while a job runs: neither another user of the machine nor the network can have it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pyspark
import pytest

from homing.spark.submit.job import Job
from homing.spark.submit.master import settings_of
from tests.spark.conftest import CHAINS

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users"),
]

MARK, NOBODY = "Marked-5d0c9e1f", 65534
SUBMIT = Path(pyspark.__file__).parent / "bin" / "spark-submit"
APPLICATION = """
import json, socket, struct, subprocess, sys
from pyspark import StorageLevel
from pyspark.sql import SparkSession

mark, nobody = sys.argv[1], int(sys.argv[2])
session = SparkSession.builder.config("spark.ui.enabled", "false").getOrCreate()
rows = session.createDataFrame([(mark,)], "card string").repartition(2).persist(StorageLevel.DISK_ONLY)
assert rows.count() == 1
blocks = session._jvm.org.apache.spark.SparkEnv.get().blockManager().diskBlockManager()
places = [place.getPath() for place in blocks.localDirs()]
search = ["grep", "--recursive", "--text", "--files-with-matches", mark, *places]
mine = subprocess.run(search, capture_output=True, text=True)
theirs = subprocess.run(search, capture_output=True, text=True, user=nobody, group=nobody)


def text(value):
    return struct.pack(">i", len(value)) + value.encode()


# A stranger asks for a block, as executors ask each other: a request is a 3, "open these blocks" a 0, an answer a 4.
block = next(name for name in blocks.getAllBlocks().mkString(" ").split() if name.startswith("rdd_"))
body = b"\\0" + text(session.sparkContext.applicationId) + text("driver") + struct.pack(">i", 1) + text(block)
frame = struct.pack(">bqi", 3, 1, len(body)) + body
server = session._jvm.org.apache.spark.SparkEnv.get().blockManager().blockManagerId()
with socket.create_connection((server.host(), server.port()), timeout=60) as stranger:
    stranger.sendall(struct.pack(">q", 8 + len(frame)) + frame)
    answer = stranger.recv(9)
given = answer[8:9] == bytes([4])
print("found", json.dumps([places, mine.stdout.split(), theirs.stdout.split(), given]))
"""


@dataclass
class Found:
    """Where the job kept blocks, the files with the mark that its user can read, those that another user can, and
    whether a stranger on the network was given one."""

    places: list[str]
    mine: list[str]
    theirs: list[str]
    given: bool


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    folder, master = tmp_path_factory.mktemp("job"), "local[1]"
    (folder / "application.py").write_text(APPLICATION)
    store = f"sqlite:///{folder}/x.db?store=x"
    settings = [part for name, value in settings_of(master).items() for part in ("--conf", f"{name}={value}")]
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(CHAINS))
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        job = Job("process.py", "spark_chain:chain", str(folder / "work"), (store, store))
        with job.submission({"master": master}):
            command = [str(SUBMIT), "--master", master, *settings, str(folder / "application.py"), MARK, str(NOBODY)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr[-5000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("found "))
    return Found(*json.loads(line.partition(" ")[2]))


def test_what_a_job_keeps_on_the_disk_another_user_cannot_read_and_it_goes_with_the_job(found: Found) -> None:
    assert found.mine
    assert found.theirs == []
    assert not any(Path(place).parent.exists() for place in found.places)


def test_a_stranger_on_the_network_is_given_no_block(found: Found) -> None:
    assert not found.given
