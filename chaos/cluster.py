"""A real Spark cluster on this machine: a master and two workers, each with one executor's room."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

from demo.ports import free_port

SPARK = Path(pyspark.__file__).parent
#: Six of them share the cores of one machine: they are to start soon, not to run fast.
QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_PATIENCE = 120.0


class Cluster:
    """Daemons of Spark, each with its executors in a process group of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.master = f"spark://127.0.0.1:{free_port()}"
        self.daemons: list[subprocess.Popen[bytes]] = []

    def start(self, name: str, kind: str, *arguments: str) -> subprocess.Popen[bytes]:
        log = self.folder / f"{name}.log"
        daemons = {"SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": QUICK_JVM}
        environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", **daemons}
        command = [str(SPARK / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}", "--host", "127.0.0.1"]
        # The kernel ends it with whoever started it, however that ends.
        guard = ["setpriv", "--pdeathsig=KILL"] if shutil.which("setpriv") else []
        with log.open("wb") as file:
            daemon = subprocess.Popen(
                [*guard, *command, "--webui-port", "0", *arguments],
                env=environment,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.daemons.append(daemon)
        return daemon

    def wait_for(self, name: str, text: str) -> None:
        log, until = self.folder / f"{name}.log", time.monotonic() + _PATIENCE
        while text not in log.read_text():
            if time.monotonic() > until:
                raise TimeoutError(f"{text!r} is not in the log of {name}:\n{log.read_text()[-2000:]}")
            time.sleep(0.1)


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
