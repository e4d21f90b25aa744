"""Spark as docker-compose.yaml runs it: who does not know the secret is not let in, and no argument has it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spark.test_cluster import QUICK_JVM, SPARK, Cluster, kill, wait_until

pytestmark = [pytest.mark.services, pytest.mark.timeout(900)]

CONF = Path(__file__).parents[2] / "deploy" / "spark"
SECRET = "only-those-who-know-it-are-let-in-0123456789"  # noqa: S105
KNOWING = {"SPARK_CONF_DIR": str(CONF), "_SPARK_AUTH_SECRET": SECRET}
# Shuffles, so that executors write, encrypt and fetch; and says what argv the executor's machine shows meanwhile.
JOB = """
import sys, time
from pyspark.sql import SparkSession
spark = SparkSession.builder.appName("secured").getOrCreate()
assert spark.range(1000).repartition(4).groupBy().count().collect()[0][0] == 1000
print("COUNTED", flush=True)
time.sleep(float(sys.argv[1]))
spark.stop()
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    (cluster.folder / "job.py").write_text(JOB)
    port = cluster.master.rpartition(":")[2]
    try:
        cluster.start("master", "127.0.0.1", "master.Master", "--port", port, **KNOWING)
        cluster.wait_for("master", "New state: ALIVE")
        work = str(cluster.folder / "work")
        size = ("--cores", "1", "--memory", "1g", "-d", work)
        cluster.start("worker", "127.0.0.1", "worker.Worker", *size, cluster.master, **KNOWING)
        cluster.wait_for("worker", "Successfully registered with master")
        yield cluster
    finally:
        for daemon in cluster.daemons.values():
            kill(daemon)


def submit(cluster: Cluster, name: str, stays: int = 0, **environment: str) -> subprocess.Popen[bytes]:
    command = [str(SPARK / "bin" / "spark-submit"), "--master", cluster.master, "--conf", "spark.executor.memory=512m",
               "--conf", "spark.ui.enabled=false", "--conf", f"spark.driver.extraJavaOptions={QUICK_JVM}",
               str(cluster.folder / "job.py"), str(stays)]  # fmt: skip
    inherited = {key: value for key, value in os.environ.items() if key not in KNOWING}
    return cluster.run(
        name, {**inherited, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", **environment}, *command
    )


def test_a_job_that_knows_the_secret_runs_and_no_argument_of_any_process_has_it(cluster: Cluster) -> None:
    job = submit(cluster, "knowing", stays=600, **KNOWING)
    wait_until(lambda: "COUNTED" in cluster.log("knowing") or job.poll() is not None, "the count")

    lines = [_arguments(path) for path in Path("/proc").glob("[0-9]*/cmdline")]
    executors = [line for line in lines if "CoarseGrainedExecutorBackend" in line]
    kill(job)

    assert "COUNTED" in cluster.log("knowing")
    assert executors, "one was running"
    assert not [line for line in lines if SECRET in line]


def _arguments(path: Path) -> str:
    try:
        return path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""  # it has ended


@pytest.mark.parametrize("knows", ["nothing", "the settings"])
def test_a_job_that_does_not_know_the_secret_is_refused(cluster: Cluster, knows: str) -> None:
    told = {"SPARK_CONF_DIR": str(CONF)} if knows == "the settings" else {}
    name = knows.replace(" ", "-")

    job = submit(cluster, name, **told)
    wait_until(lambda: job.poll() is not None, "the end of the job")

    assert job.returncode != 0
    assert "COUNTED" not in cluster.log(name)
    assert SECRET not in cluster.log("master") + cluster.log("worker") + cluster.log("knowing")


def test_a_worker_that_does_not_know_the_secret_is_refused(cluster: Cluster) -> None:
    """One that was let in would be handed the next job, with its messages."""
    work = str(cluster.folder / "stranger")
    cluster.start(
        "stranger", "127.0.0.1", "worker.Worker", "--cores", "1", "--memory", "1g", "-d", work, cluster.master
    )
    cluster.wait_for("stranger", "Failed to connect to master")

    assert "Successfully registered" not in cluster.log("stranger")
    assert cluster.log("master").count("Registering worker") == 1
