"""The subjects that run on Spark: a cluster, a lake, and Airflow."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow.dataset as ds

from chaos import spark_driver
from chaos.chain import FOLDER
from chaos.cluster import QUICK_JVM, SPARK, Cluster, running
from chaos.destination import FLOWS, fault_of
from chaos.family import command_of, family
from chaos.servers import ServedPostgreSQL, small_disk
from chaos.spark_driver import ALL, FIRST_PASSES, REPLAYS
from chaos.story import Story
from chaos.subjects import PYTHONPATH, ROOT, Subject, Traits, Victim, urls
from demo.stack import AirflowStack
from homing.delivery import recorder

#: Seconds a delivery takes, so that a kill comes in the middle of one.
TAKES = 0.1
#: An executor's task may have delivered for so long and not recorded it; and as long again until it knows that it has
#: been given up.
_CHUNK = min(recorder.ENTRIES_PER_FLUSH, int(2 * recorder.FLUSH_EVERY_SECONDS / TAKES))
_CORES = os.cpu_count() or 1
_JOBS = len(FLOWS) + 1  # of the pipeline and its replay that deliver at once on Airflow
#: Spark gives up an executor that it has not heard of for so many seconds.
_HEARTBEAT, _UNHEARD = 2, 10
#: Airflow gives up a task, and a pipeline its batch, after so many seconds without a sign of life.
AIRFLOW_HEARTBEAT, AIRFLOW_LEASE = 15, 60
_CLUSTER_CHAIN, _LAKE_CHAIN = "chaos.chain:chain", "chaos.lake_chain:chain"

_GENERATOR = {"generator": "generate"}

CLUSTER = Traits(
    roles={"generator": 0, "Spark driver": 2, "Spark executor": 1, "executor's Python": 1},
    leases={"Spark driver": spark_driver.LEASE, "Spark executor": _UNHEARD, "executor's Python": _UNHEARD},
    servers=("PostgreSQL",),
    disk="work",
    work_dir=True,
    clocks=("generator",),
    on_spark=True,
)
LAKE = Traits(
    roles={"generator": 0, "Spark driver": 1, "replay driver": 1},
    leases={"Spark driver": spark_driver.LEASE, "replay driver": spark_driver.LEASE},
    servers=("PostgreSQL",),
    disk="work",
    work_dir=True,
    clocks=("generator",),
    on_spark=True,
)
AIRFLOW = Traits(
    roles={
        "generator": 0,
        "Airflow triggerer": 0,
        "Airflow scheduler": _JOBS * _CORES,  # its successor may run what is running a second time
        "Airflow worker": _CORES,
        "Airflow task": _CORES,
        "Spark driver": _CORES,
    },
    leases={
        "Airflow worker": AIRFLOW_HEARTBEAT,
        "Airflow task": AIRFLOW_HEARTBEAT,
        "Spark driver": AIRFLOW_LEASE + 2,  # held a little longer, for the task's retry
    },
    servers=("PostgreSQL",),
    disk="work",
    work_dir=True,
    clocks=("generator",),
    on_spark=True,
)


@dataclass
class SparkSubject(Subject):
    """Spark drivers, started by spark-submit, each with what it does."""

    on_spark = True
    cluster: Cluster | None = None
    chain: str = _CLUSTER_CHAIN
    drivers: tuple[tuple[str, str], ...] = (("Spark driver", ALL),)

    def victims(self) -> list[Victim]:
        daemons = self.cluster.daemons if self.cluster else []
        below = [pid for daemon in daemons for pid in family(daemon.pid)[1:]]
        calls = {pid: command_of(pid) for pid in below}
        executors = [Victim("Spark executor", pid) for pid, call in calls.items() if "ExecutorBackend" in call]
        pythons = [Victim("executor's Python", pid) for pid, call in calls.items() if "pyspark.daemon" in call]
        return [*super().victims(), *executors, *pythons]

    def _commands(self) -> dict[str, list[str]]:
        conf = {
            "spark.executor.memory": "512m",
            "spark.driver.memory": "512m",
            "spark.driver.extraJavaOptions": QUICK_JVM,
            "spark.executor.extraJavaOptions": QUICK_JVM,
            f"spark.executorEnv.{FOLDER}": str(self.folder),
            "spark.executorEnv.PYTHONPATH": PYTHONPATH,
            "spark.executorEnv.HOMING_CHAOS_TAKES": str(self.takes),
            "spark.executor.heartbeatInterval": f"{_HEARTBEAT}s",
            "spark.network.timeout": f"{_UNHEARD}s",
            "spark.network.timeoutInterval": f"{_HEARTBEAT}s",
            "spark.ui.enabled": "false",
            "spark.log.level": "ERROR",
        }
        flags = [part for name, value in conf.items() for part in ("--conf", f"{name}={value}")]
        master = self.cluster.master if self.cluster else "local[1]"
        submit = [str(SPARK / "bin" / "spark-submit"), "--master", master, *flags, spark_driver.__file__]
        drivers = {name: [*submit, str(self.folder), name, self.chain, does] for name, does in self.drivers}
        return {**super()._commands(), **drivers}

    def _environment(self) -> dict[str, str]:
        spark = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
        return {**super()._environment(), **spark}


@dataclass
class LakeSubject(SparkSubject):
    """One driver runs first passes, another one replays; both write to the same lake, a folder of Parquet files."""

    chain: str = _LAKE_CHAIN
    drivers: tuple[tuple[str, str], ...] = (("Spark driver", FIRST_PASSES), ("replay driver", REPLAYS))

    def delivered(self, story: Story) -> Counter[str]:
        """What can be read in the lake, and what the other destination was told."""
        return story.delivered() + Counter(self._in_lake())

    def _in_lake(self) -> Iterator[str]:
        lake = self.folder / "lake"
        if not lake.exists():
            return
        files = ds.dataset(lake, format="parquet", partitioning="hive")
        for row in files.to_table(columns=["id", "message"]).to_pylist():
            yield f"{row['id']} lake{fault_of(row['id'], json.loads(row['message']))}"


@dataclass
class AirflowSubject(Subject):
    """A pipeline's DAGs on a real Airflow, whose tasks run Spark on this machine."""

    on_spark = True
    airflow: AirflowStack | None = None

    def keep_running(self) -> None:
        super().keep_running()
        assert self.airflow is not None
        for component in ("scheduler", "triggerer"):
            if self.airflow.pid(component) is None:
                self.airflow.restart(component)

    def victims(self) -> list[Victim]:
        assert self.airflow is not None
        parts = [(name, self.airflow.pid(name)) for name in ("scheduler", "triggerer")]
        found = [Victim(f"Airflow {name}", pid) for name, pid in parts if pid is not None]
        for pid in self.airflow.processes():
            call = command_of(pid)
            if "org.apache.spark.deploy.SparkSubmit" in call:
                found.append(Victim("Spark driver", pid))
            # Not one that waits for work: it holds the lock of the executor's queue, and would take it along.
            elif call.startswith("airflow worker -- LocalExecutor: "):
                found += [] if "<idle>" in call else [Victim("Airflow worker", pid)]
            elif call.startswith("airflow worker -- "):
                found.append(Victim("Airflow task", pid))
        return [*super().victims(), *found]

    def _logs(self) -> list[Path]:
        assert self.airflow is not None
        return [*super()._logs(), *(path for path in (self.airflow.home / "logs").rglob("*.log") if path.is_file())]


# -- making them -----------------------------------------------------------------------------------------------


@contextmanager
def on_cluster(folder: Path, traits: Traits) -> Iterator[Subject]:
    with _postgresql() as server, _work(folder) as disk, running(folder) as cluster:
        yield SparkSubject(
            folder, traits, *urls(server.new_url()), _GENERATOR,
            servers=[server], disk=disk, cluster=cluster,
            spell=6.0, calm=20.0, patience=300.0, chunk=_CHUNK, takes=TAKES, pause=0.25,
        )  # fmt: skip


@contextmanager
def on_lake(folder: Path, traits: Traits) -> Iterator[Subject]:
    with _postgresql() as server, _work(folder) as disk:
        yield LakeSubject(
            folder, traits, *urls(server.new_url()), _GENERATOR,
            servers=[server], disk=disk,
            spell=6.0, calm=20.0, patience=300.0, chunk=_CHUNK, takes=TAKES, pause=0.25,
        )  # fmt: skip


@contextmanager
def on_airflow(folder: Path, traits: Traits) -> Iterator[Subject]:
    with _postgresql() as server, _work(folder) as disk:
        store, dead = urls(server.new_url())
        settings = {
            "PYTHONPATH": PYTHONPATH,
            FOLDER: str(folder),
            "HOMING_CHAOS_TAKES": str(TAKES),
            "CHAOS_STORE": store,
            "CHAOS_DEAD_LETTERS": dead,
            "CHAOS_WORK": str(folder / "work" / "runs"),
            "CHAOS_LEASE": str(AIRFLOW_LEASE),
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": str(AIRFLOW_HEARTBEAT),
        }
        with AirflowStack(folder / "airflow", ROOT / "chaos" / "dags", settings) as airflow:
            for dag in ("chaos", "chaos_replay", "homing_reconcile"):
                airflow.wait_for_dag(dag)
                airflow.unpause(dag)
            yield AirflowSubject(
                folder, traits, store, dead, _GENERATOR,
                servers=[server], disk=disk, airflow=airflow,
                spell=6.0, calm=20.0, patience=600.0, tasks=_JOBS * _CORES, chunk=_CHUNK, takes=TAKES, pause=0.25,
            )  # fmt: skip


@contextmanager
def _postgresql() -> Iterator[ServedPostgreSQL]:
    server = ServedPostgreSQL()
    try:
        yield server
    finally:
        server.close()


@contextmanager
def _work(folder: Path) -> Iterator[Path | None]:
    with small_disk(folder / "work") as disk:
        (folder / "work" / "runs").mkdir()
        yield disk
