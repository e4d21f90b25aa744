"""A real cluster on this machine: a master and two workers, one of which is killed in the middle of a batch."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
import pytest

from demo.ports import free_port
from homing.delivery import Batch, keep_books, open_pipeline_stores
from homing.delivery.reach import build_py_files
from homing.ledger import DELIVERED
from tests.servers import PostgreSQL
from tests.spark.conftest import CHAINS
from tests.spark.test_applications import APPLICATIONS

SPARK = Path(pyspark.__file__).parent
MESSAGES = 800
PATIENCE = 280


class Cluster:
    """Daemons of Spark, each with its executors in a process group of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.master = f"spark://127.0.0.1:{free_port()}"
        self.daemons: list[subprocess.Popen[bytes]] = []

    def start(self, name: str, kind: str, *arguments: str) -> subprocess.Popen[bytes]:
        log = self.folder / f"{name}.log"
        environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "256m"}
        command = [str(SPARK / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}", "--host", "127.0.0.1"]
        with log.open("wb") as file:
            daemon = subprocess.Popen(
                [*command, "--webui-port", "0", *arguments],
                env=environment,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.daemons.append(daemon)
        return daemon

    def wait_for(self, name: str, text: str) -> None:
        wait_until(lambda: text in (self.folder / f"{name}.log").read_text(), f"{text!r} in the log of {name}")


@contextmanager
def running(folder: Path) -> Iterator[Cluster]:
    cluster = Cluster(folder)
    try:
        cluster.start("master", "master.Master", "--port", cluster.master.rpartition(":")[2])
        cluster.wait_for("master", "New state: ALIVE")
        for name in ("one", "two"):
            work = str(folder / name)
            cluster.start(name, "worker.Worker", "--cores", "1", "--memory", "1g", "-d", work, cluster.master)
        for name in ("one", "two"):
            cluster.wait_for(name, "Successfully registered with master")
        yield cluster
    finally:
        for daemon in cluster.daemons:
            kill(daemon)


def kill(daemon: subprocess.Popen[bytes]) -> None:
    """The daemon and the executors it started."""
    if daemon.poll() is None:
        os.killpg(daemon.pid, signal.SIGKILL)
        daemon.wait()


def wait_until(done: Callable[[], bool], what: str) -> None:
    limit = time.monotonic() + PATIENCE
    while not done():
        assert time.monotonic() < limit, f"waited in vain for {what}"
        time.sleep(0.1)


def delivered(output: Path) -> Counter[int]:
    return Counter(int(line) for path in output.glob("slow-*") for line in path.read_text().split())


@pytest.mark.services
@pytest.mark.timeout(900)
def test_a_worker_that_is_killed_in_the_middle_of_a_batch_loses_nothing(
    postgresql: PostgreSQL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(CHAINS))
    output = tmp_path / "out"
    output.mkdir()
    database = postgresql.empty_database()
    urls = f"{database}?store=numbers", f"{database}?store=numbers_dead"
    code = build_py_files(tmp_path / "cache", "cluster_chain")
    with open_pipeline_stores(*urls) as stores, running(tmp_path) as cluster:
        stores.store.store_many([{"n": n} for n in range(MESSAGES)])
        batch = Batch(stores, "run", ["slow"], chain="numbers")
        assert batch.claim(MESSAGES) == MESSAGES

        job = submit(cluster, output, urls, code)
        # Both executors are at work, and each has had time to record something.
        wait_until(lambda: job.poll() is not None or len(list(output.glob("slow-*"))) >= 2, "both executors")
        wait_until(lambda: job.poll() is not None or delivered(output).total() >= MESSAGES // 4, "deliveries")
        assert job.poll() is None, (tmp_path / "job.log").read_text()
        kill(cluster.daemons[2])
        job.wait(PATIENCE)

        assert job.returncode == 0, (tmp_path / "job.log").read_text()
        made = delivered(output)
        assert made.keys() == set(range(MESSAGES))
        twice = made.total() - MESSAGES
        # Only what the killed executor had delivered and not yet recorded.
        assert twice <= 100
        ids = [message_id for message_id, _, _ in stores.store.states()]
        entries = [found["slow"] for found in stores.ledger.entries(ids).values()]
        assert Counter(entry.state for entry in entries) == {DELIVERED: MESSAGES}
        assert batch.settle().acknowledged == MESSAGES
        assert keep_books(stores, ["slow"]).balanced
        assert all(".zip" in path.read_text() for path in output.glob("code-*"))


def submit(cluster: Cluster, output: Path, urls: tuple[str, str], code: Path) -> subprocess.Popen[bytes]:
    """The application that delivers, as the operator would start it."""
    environment = {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "HOMING_STORE": urls[0],
        "HOMING_DEAD_LETTER_STORE": urls[1],
        # The driver imports the chain from here, and the executors from the zip.
        "PYTHONPATH": os.pathsep.join([str(CHAINS), os.environ.get("PYTHONPATH", "")]),
        "SPARK_CHAIN_OUT": str(output),
    }
    conf = {
        "spark.executor.memory": "512m",
        "spark.executorEnv.SPARK_CHAIN_OUT": str(output),
        "spark.ui.enabled": "false",
        "spark.log.level": "WARN",
    }
    flags = [part for name, value in conf.items() for part in ("--conf", f"{name}={value}")]
    arguments = ["--chain", "cluster_chain:chain", "--run-id", "run", "--flow", "slow", "--work-dir", str(output / "w")]
    command = [str(SPARK / "bin" / "spark-submit"), "--master", cluster.master, "--py-files", str(code), *flags]
    with (cluster.folder / "job.log").open("wb") as log:
        job = subprocess.Popen(
            [*command, str(APPLICATIONS / "deliver.py"), *arguments],
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    cluster.daemons.append(job)  # ended with the others, should the test fail
    return job
