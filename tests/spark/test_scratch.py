"""What Spark keeps on the disk of this machine while a job runs: another user can read none of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from homing.spark.submit.job import Job
from tests.spark.conftest import CHAINS

pytestmark = pytest.mark.timeout(600)

MARK, NOBODY = "Marked-5d0c9e1f", 65534
SUBMIT = Path(pyspark.__file__).parent / "bin" / "spark-submit"
APPLICATION = """
import json, subprocess, sys
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
print("found", json.dumps([places, mine.stdout.split(), theirs.stdout.split()]))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
def test_what_a_job_keeps_on_the_disk_another_user_cannot_read_and_it_goes_with_the_job(tmp_path: Path) -> None:
    (tmp_path / "application.py").write_text(APPLICATION)
    store = f"sqlite:///{tmp_path}/x.db?store=x"
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(CHAINS))
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        job = Job("process.py", "spark_chain:chain", str(tmp_path / "work"), (store, store))
        with job.submission({"master": "local[1]"}):
            command = [str(SUBMIT), "--master", "local[1]", str(tmp_path / "application.py"), MARK, str(NOBODY)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
            assert done.returncode == 0, done.stderr[-5000:]

    found = next(line for line in done.stdout.splitlines() if line.startswith("found "))
    places, mine, theirs = json.loads(found.partition(" ")[2])
    assert mine
    assert theirs == []
    assert not any(Path(place).parent.exists() for place in places)
