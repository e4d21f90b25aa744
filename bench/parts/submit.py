"""Submit: a Spark job that counts ten rows, started with our class-data archive, beside a stock spark-submit."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from bench.contestants.contestant import timed
from bench.figures import Row
from bench.progress import say
from bench.rounds import Case, Comparison, rows, take_turns
from bench.scale import Scale
from bench.services import Services
from homing.delivery.private_folder import cache_folder
from homing.spark.submit.class_archive import class_archive

BAR = 0.65
_JOB = "from pyspark.sql import SparkSession\nprint(SparkSession.builder.getOrCreate().range(10).count())\n"


def submit(scale: Scale, services: Services) -> Iterator[Row]:
    script = services.folder / "trivial.py"
    script.write_text(_JOB)

    def ours() -> None:
        with class_archive() as start:
            _submit(script, start.environment)
            start.note_session()

    if not list(cache_folder().glob("*.jsa")):
        say("a first spark-submit makes the class-data archive")
        ours()
    archived, stock = Case("ours", lambda: timed(ours)), Case("stock", lambda: timed(lambda: _submit(script, {})))
    take_turns([archived, stock], scale.submits, warm_up=False)
    yield from rows("Spark", [Comparison("spark-submit, trivial job", archived, "stock spark-submit", stock, BAR)])


def _submit(script: Path, more: dict[str, str]) -> None:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "SPARK_LOCAL_IP": "127.0.0.1", **more}
    done = subprocess.run(
        ["spark-submit", "--master", "local[2]", str(script)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"spark-submit ended with {done.returncode}: {done.stderr[-500:]}")
