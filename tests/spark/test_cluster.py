"""A real cluster on this machine: a master and two workers, of which tasks, executors and a worker are lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pyspark
import pytest

from demo.ports import free_port
from homing.airflow import PipelineConfig
from homing.airflow.operators.spark import DeliverOperator, ProcessOperator
from homing.delivery import Batch, PipelineStores, open_pipeline_stores, run_audit
from homing.delivery.recorder import ENTRIES_PER_FLUSH
from homing.failure import WORKER_CRASH
from homing.ledger import DELIVERED, FAILED, Entry
from homing.spark.submit.py_files import build_py_files
from tests.servers import PostgreSQL
from tests.spark.conftest import CHAINS
from tests.spark.test_applications import APPLICATIONS
from tests.spark.test_tried_again import tries
from tests.unit.airflow_parts.conftest import context

pytestmark = [pytest.mark.services, pytest.mark.timeout(900)]

SPARK = Path(pyspark.__file__).parent
HOSTS = ("127.0.0.1", "127.0.0.2")  # two machines to Spark, which has no task twice on one
# Five of them share the cores of this machine: they are to start soon, not to run fast.
QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
MESSAGES = 400
PATIENCE = 280


class Cluster:
    """Daemons of Spark, each with its executors in a process group of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.master = f"spark://127.0.0.1:{free_port()}"
        self.daemons: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, host: str, kind: str, *arguments: str, **more: str) -> None:
        """Starts a daemon; `more` is for its environment."""
        environment = {
            **os.environ,
            **more,
            "SPARK_LOCAL_IP": host,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": QUICK_JVM,
        }
        command = [str(SPARK / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}", "--host", host]
        self.run(name, environment, *command, "--webui-port", "0", *arguments)

    def run(self, name: str, environment: dict[str, str], *command: str) -> subprocess.Popen[bytes]:
        """Starts a process of this name, which is ended with the others at the latest."""
        with (self.folder / f"{name}.log").open("wb") as log:
            started = subprocess.Popen(
                command, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        self.daemons[name] = started
        return started

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def wait_for(self, name: str, text: str) -> None:
        wait_until(lambda: text in self.log(name), f"{text!r} in the log of {name}")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A master and two workers, as if on two machines."""
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        cluster.start("master", "127.0.0.1", "master.Master", "--port", cluster.master.rpartition(":")[2])
        cluster.wait_for("master", "New state: ALIVE")
        for host in HOSTS:
            work = str(cluster.folder / host)
            cluster.start(host, host, "worker.Worker", "--cores", "1", "--memory", "1g", "-d", work, cluster.master)
        for host in HOSTS:
            cluster.wait_for(host, "Successfully registered with master")
        yield cluster
    finally:
        for daemon in cluster.daemons.values():
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


class Work:
    """A pipeline in PostgreSQL, whose jobs run on the cluster as the operator would start them."""

    def __init__(self, cluster: Cluster, stores: PipelineStores, folder: Path, url: str) -> None:
        self.cluster, self.stores, self.folder, self.url = cluster, stores, folder, url
        self.output = folder / "out"
        self.output.mkdir()

    def claim(self, flow: str, *contents: object) -> Batch:
        self.stores.store.store_many(contents)
        batch = Batch(self.stores, "run", [flow], chain="numbers")
        assert batch.claim(len(contents)) == len(contents)
        return batch

    def submit(self, application: Path, chain: str, *arguments: str, **conf: object) -> subprocess.Popen[bytes]:
        code = build_py_files(self.folder / "cache", chain)
        environment = {
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "HOMING_STORE": f"{self.url}?store=numbers",
            "HOMING_DEAD_LETTER_STORE": f"{self.url}?store=numbers_dead",
            # The driver imports the chain from here, and the executors from the zip.
            "PYTHONPATH": os.pathsep.join([str(CHAINS), os.environ.get("PYTHONPATH", "")]),
            "SPARK_CHAIN_OUT": str(self.output),
        }
        settings = {
            **self.settings,
            **{f"spark.{name.replace('_', '.')}": value for name, value in conf.items()},
        }
        flags = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
        command = [str(SPARK / "bin" / "spark-submit"), "--master", self.cluster.master, "--py-files", str(code)]
        return self.cluster.run(self.job, environment, *command, *flags, str(application), *arguments)

    def deliver(self, chain: str, flow: str, **conf: object) -> subprocess.Popen[bytes]:
        arguments = ["--chain", f"{chain}:chain", "--run-id", "run", "--flow", flow, "--work-dir", self.work_dir]
        return self.submit(APPLICATIONS / "deliver.py", chain, *arguments, **conf)

    @property
    def settings(self) -> dict[str, str]:
        return {
            "spark.executor.memory": "512m",
            "spark.executorEnv.SPARK_CHAIN_OUT": str(self.output),
            "spark.executor.extraJavaOptions": QUICK_JVM,
            "spark.driver.extraJavaOptions": QUICK_JVM,
            "spark.ui.enabled": "false",
            "spark.log.level": "WARN",
        }

    @property
    def work_dir(self) -> str:
        return str(self.folder / "work")

    @property
    def job(self) -> str:
        return f"job of {self.folder.name}"

    def await_end(self, job: subprocess.Popen[bytes]) -> str:
        """The job's log, once it has come to its end."""
        job.wait(PATIENCE)
        assert job.returncode == 0, self.cluster.log(self.job)
        return self.cluster.log(self.job)

    def entries(self, flow: str) -> list[Entry]:
        ids = [message_id for message_id, _, _ in self.stores.store.view.states()]
        return [found[flow] for found in self.stores.ledger.entries(ids).values()]

    def made(self, flow: str) -> Counter[int]:
        """How often each message was delivered, as the destination saw it."""
        lines = [line for path in self.output.glob(f"{flow}-*") for line in path.read_text().splitlines()]
        return Counter(int(line.split()[0]) for line in lines)


@pytest.fixture
def work(cluster: Cluster, postgresql: PostgreSQL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Work]:
    monkeypatch.syspath_prepend(str(CHAINS))
    url = postgresql.empty_database()
    with open_pipeline_stores(f"{url}?store=numbers", f"{url}?store=numbers_dead") as stores:
        yield Work(cluster, stores, tmp_path, url)


def test_a_task_that_runs_twice_at_once_is_recorded_once_and_the_first_copy_gives_way(work: Work) -> None:
    # The second half of the messages holds up whoever tries first: then Spark starts a copy of that task elsewhere.
    batch = work.claim("shop", *[{"n": n, "slow": 0.1 if n >= 100 else 0} for n in range(200)])
    speculate = {
        "speculation": "true",
        "speculation_interval": "100ms",
        "speculation_multiplier": "1.1",
        "speculation_quantile": "0.5",
        "speculation_minTaskRuntime": "3s",
    }

    job = work.submit(Path(__file__).with_name("speculating.py"), "tried_chain", work.work_dir, **speculate)
    work.await_end(job)

    made = work.made("shop")
    assert made.keys() == set(range(200))
    assert {attempt for n, attempts in tries(work.output).items() if n >= 100 for attempt in attempts} == {0, 1}
    # The first copy stops within a moment of the second one's beginning, and its messages are not made again.
    assert made.total() - 200 <= 20
    entries = work.entries("shop")
    assert Counter(entry.state for entry in entries) == {DELIVERED: 200}
    assert sum(entry.deliveries for entry in entries) <= made.total()
    assert batch.settle().acknowledged == 200
    assert run_audit(work.stores, ["shop"]).balanced


def test_a_message_that_kills_its_executor_is_found_and_the_rest_is_delivered(work: Work) -> None:
    batch = work.claim("slow", *[{"n": n, "kill": n == 150} for n in range(200)])

    # Spark's own retries would only kill more executors, each of which takes its time to start.
    log = work.await_end(work.deliver("cluster_chain", "slow", task_maxFailures=1))

    assert "crashes the worker that handles it" in log
    made = work.made("slow")
    assert made.keys() == set(range(200)) - {150}
    (failed,) = [entry for entry in work.entries("slow") if entry.state == FAILED]
    assert failed.error is not None
    assert failed.error["type"] == WORKER_CRASH
    settlement = batch.settle()
    assert (settlement.acknowledged, settlement.failed) == (199, 1)
    assert run_audit(work.stores, ["slow"]).balanced


def test_the_tasks_of_a_pipeline_run_on_the_cluster_that_the_airflow_connection_names(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBERS", f"{work.url}?store=numbers")
    monkeypatch.setenv("NUMBERS_DEAD", f"{work.url}?store=numbers_dead")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.setenv("PATH", f"{SPARK / 'bin'}{os.pathsep}{os.environ['PATH']}")
    connection = {"conn_type": "spark", "host": work.cluster.master}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(connection))
    stores = {"store": "env:NUMBERS", "dead_letter_store": "env:NUMBERS_DEAD"}
    monkeypatch.setenv("AIRFLOW_CONN_NUMBERS_API", "http://me:told@numbers")
    spec = PipelineConfig("numbers", chain="cluster_chain:connected", work_dir=work.work_dir, **stores)
    work.stores.store.store_many([{"n": n} for n in range(20)])
    run_id = spec.run_key(context())
    with spec.open_batch(run_id) as batch:
        assert batch.claim(20) == 20

    ProcessOperator(task_id="process", pipeline=spec, conf=work.settings).execute(context())
    DeliverOperator(task_id="slow", pipeline=spec, flow="slow", conf=work.settings).execute(context())

    assert work.made("slow") == dict.fromkeys(range(20), 1)
    code = [str(path.readlink()) for path in work.output.glob("code-*")]
    assert code
    assert all(".zip" in path for path in code)
    with spec.open_batch(run_id) as batch:
        assert batch.settle().acknowledged == 20


# The last one, since it leaves one worker.
def test_a_worker_that_is_killed_in_the_middle_of_a_batch_loses_nothing(work: Work) -> None:
    batch = work.claim("slow", *[{"n": n} for n in range(MESSAGES)])

    job = work.deliver("cluster_chain", "slow")
    # Both executors are at work, and each has had time to record something.
    wait_until(lambda: job.poll() is not None or len(list(work.output.glob("slow-*"))) >= 2, "both executors")
    wait_until(lambda: job.poll() is not None or work.made("slow").total() >= MESSAGES // 4, "deliveries")
    assert job.poll() is None, work.cluster.log(work.job)
    kill(work.cluster.daemons[HOSTS[1]])
    work.await_end(job)

    made = work.made("slow")
    assert made.keys() == set(range(MESSAGES))
    # Only what the killed executor had delivered and not yet recorded.
    assert made.total() - MESSAGES <= ENTRIES_PER_FLUSH
    assert Counter(entry.state for entry in work.entries("slow")) == {DELIVERED: MESSAGES}
    assert batch.settle().acknowledged == MESSAGES
    assert run_audit(work.stores, ["slow"]).balanced
    code = [str(path.readlink()) for path in work.output.glob("code-*")]
    assert code
    assert all(".zip" in path for path in code)
