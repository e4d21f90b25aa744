"""What a chaos run is about: a store with those who work on it, and which of their processes can be harmed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from sqlalchemy.engine import Connection

from chaos import spark_driver
from chaos.chain import FOLDER, TAKES
from chaos.cluster import QUICK_JVM, SPARK, Cluster, running
from chaos.destination import FLOWS
from chaos.family import command_of, family
from chaos.nemesis import Victim
from chaos.workers import CHUNK, LEASE, is_ready
from demo.stack import AirflowStack
from homing import open_store
from homing.errors import StoreError
from homing.spark import recorder
from homing.stores.sql import SqlStore
from tests.rabbitmq_server import RabbitMQ
from tests.servers import PostgreSQL, launch

_ROOT = Path(__file__).resolve().parent.parent
_PYTHONPATH = os.pathsep.join([str(_ROOT / "plugins"), str(_ROOT)])
_WORKERS = 2
#: The longest a message may be handed out again and again before its store gives it up; here it never should.
_OPTIONS = "ack_wait=3&max_deliveries=1000"
#: An executor's task may have delivered for so long and not recorded it; and as long again until it knows that it has
#: been given up.
_SPARK_CHUNK = min(recorder.CHUNK, int(2 * recorder.SECONDS / TAKES))
_CORES = os.cpu_count() or 1
_JOBS = len(FLOWS) + 1  # of the pipeline and its replay that deliver at once on Airflow
_DAY = 86_400 * 10**9


@dataclass
class Subject:
    """A store, a generator, and workers of one role.

    `roles` are those of the processes, with how many running tasks are hit when one of them is harmed; `tasks` run at
    once, and `chunk` is how many deliveries one may have made that nobody has noted. `spell` is how long a harm lasts
    that lasts long, and `calm` how long at most there is none, in seconds.
    """

    folder: Path
    store: str
    dead: str
    role: str
    generator: str = "generate"
    spell: float = LEASE
    calm: float = 2.0
    patience: float = 90.0
    roles: Mapping[str, int] = field(default_factory=lambda: {"generator": 0, "worker": 1})
    tasks: int = _WORKERS
    chunk: int = CHUNK
    server: Any = None
    server_signal: signal.Signals = signal.SIGKILL
    disk: Path | None = None
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    #: Then deliveries come in bursts, and a message in whose delivery processes die again and again is given up.
    on_spark: ClassVar[bool] = False

    @property
    def ledger(self) -> bool:
        """Whether it is known which flows a message has been delivered to."""
        return self.role != "listen"

    @property
    def on_sql(self) -> bool:
        return not self.store.startswith("amqp")

    @property
    def store_on_disk(self) -> bool:
        """Whether it is the store that meets a full disk, and not only the work directory."""
        return self.disk is not None and str(self.disk) in self.store

    def keep_running(self) -> None:
        """Starts what is not running: all of it at first, then what was killed."""
        for name, command in self._commands().items():
            process = self.processes.get(name)
            if process is None or process.poll() is not None:
                self.processes[name] = self._start(command)

    def victims(self) -> list[Victim]:
        """The processes that are at work, and worth killing."""
        ready = {name: one.pid for name, one in self.processes.items() if is_ready(self.folder, one.pid)}
        return [Victim(name.rstrip(" 0123456789"), pid) for name, pid in ready.items()]

    def end_leases(self) -> int:
        """Makes everything that is held have been held for too long; how many messages that are."""
        with open_store(self.store) as store:
            assert isinstance(store, SqlStore)
            with store.sibling(f"{store.name}_failures") as failures, suppress(StoreError):
                failures.count()  # makes the table that a listener does without
                return _age(store, failures)
        return 0

    def end_generator(self) -> None:
        (self.folder / "enough").touch()
        self.processes["generator"].wait(timeout=60)

    def end(self) -> None:
        (self.folder / "stop").touch()
        for process in self.processes.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=20)
            with suppress(ProcessLookupError):  # with all that came from it
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _commands(self) -> dict[str, list[str]]:
        workers = {f"worker {number}": self._python(self.role) for number in range(_WORKERS)}
        return {**self._generator(), **workers}

    def _generator(self) -> dict[str, list[str]]:
        enough = (self.folder / "enough").exists()
        return {} if enough else {"generator": self._python(self.generator)}

    def _python(self, role: str) -> list[str]:
        return [sys.executable, "-m", "chaos.workers", role, str(self.folder), self.store, self.dead]

    def _start(self, command: list[str]) -> subprocess.Popen[bytes]:
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                command, stdout=log, stderr=log, cwd=_ROOT, env=self._environment(), start_new_session=True
            )

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": _PYTHONPATH}


@dataclass
class SparkSubject(Subject):
    """A Spark driver on a cluster, and executors that are processes of their own."""

    on_spark = True
    cluster: Cluster | None = None

    def victims(self) -> list[Victim]:
        assert self.cluster is not None
        below = [pid for daemon in self.cluster.daemons for pid in family(daemon.pid)[1:]]
        calls = {pid: command_of(pid) for pid in below}
        executors = [Victim("Spark executor", pid) for pid, call in calls.items() if "ExecutorBackend" in call]
        pythons = [Victim("executor's Python", pid) for pid, call in calls.items() if "pyspark.daemon" in call]
        return [*super().victims(), *executors, *pythons]

    def _commands(self) -> dict[str, list[str]]:
        assert self.cluster is not None
        conf = {
            "spark.executor.memory": "512m",
            "spark.driver.memory": "512m",
            "spark.driver.extraJavaOptions": QUICK_JVM,
            "spark.executor.extraJavaOptions": QUICK_JVM,
            f"spark.executorEnv.{FOLDER}": str(self.folder),
            "spark.executorEnv.PYTHONPATH": _PYTHONPATH,
            "spark.ui.enabled": "false",
            "spark.log.level": "ERROR",
        }
        flags = [part for name, value in conf.items() for part in ("--conf", f"{name}={value}")]
        submit = [str(SPARK / "bin" / "spark-submit"), "--master", self.cluster.master, *flags]
        driver = [*submit, spark_driver.__file__, str(self.folder), str(self.folder / "work")]
        return {**self._generator(), "Spark driver": driver}

    def _environment(self) -> dict[str, str]:
        stores = {"HOMING_STORE": self.store, "HOMING_DEAD_LETTER_STORE": self.dead}
        spark = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", FOLDER: str(self.folder)}
        return {**super()._environment(), **stores, **spark}


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

    def _commands(self) -> dict[str, list[str]]:
        return self._generator()


def _age(store: SqlStore, failures: SqlStore) -> int:
    """As if a day had passed for whoever holds messages of these stores, or a step of the ledger beside them."""
    messages, steps = (store._table, failures._table), store.ledger()._steps  # noqa: SLF001

    def work(connection: Connection) -> int:
        connection.execute(steps.update().values(time_expires=steps.c.time_expires - _DAY))
        return sum(
            connection.execute(
                table.update().where(table.c.lock_token.is_not(None)).values(time_next=table.c.time_next - _DAY)
            ).rowcount
            for table in messages
        )

    return store._database.write(work)  # noqa: SLF001


# -- making them -----------------------------------------------------------------------------------------------


def _on_sqlite(role: str) -> Callable[[Path], AbstractContextManager[Subject]]:
    @contextmanager
    def make(folder: Path) -> Iterator[Subject]:
        with small_disk(folder / "store") as disk:
            yield Subject(folder, *_urls(f"sqlite:///{folder}/store/chaos.db"), role, disk=disk)

    return make


def _on_postgresql(role: str) -> Callable[[Path], AbstractContextManager[Subject]]:
    @contextmanager
    def make(folder: Path) -> Iterator[Subject]:
        with _postgresql() as server:
            yield Subject(folder, *_urls(server.empty_database()), role, server=server)

    return make


@contextmanager
def _on_rabbitmq(folder: Path) -> Iterator[Subject]:
    broker = launch(RabbitMQ())
    try:
        store, dead = (f"{broker.url}?store={name}&max_deliveries=1000" for name in ("orders", "orders_dead"))
        # A broker keeps what is sent twice twice: whoever died in between has stored one message again.
        roles = {"generator": 1, "worker": 1}
        yield Subject(folder, store, dead, "listen", roles=roles, server=broker, server_signal=signal.SIGTERM)
    finally:
        broker.remove()


@contextmanager
def _on_spark(folder: Path) -> Iterator[Subject]:
    with _postgresql() as server, small_disk(folder / "work") as disk, running(folder) as cluster:
        yield SparkSubject(
            folder,
            *_urls(server.empty_database()),
            "",
            generator="trickle",
            spell=12.0,
            calm=20.0,
            patience=300.0,
            roles={"generator": 0, "Spark driver": _WORKERS, "Spark executor": 1, "executor's Python": 1},
            chunk=_SPARK_CHUNK,
            server=server,
            disk=disk,
            cluster=cluster,
        )


@contextmanager
def _on_airflow(folder: Path) -> Iterator[Subject]:
    store, dead = _urls(f"sqlite:///{folder}/chaos.db")
    with small_disk(folder / "work") as disk:
        settings = {
            "PYTHONPATH": _PYTHONPATH,
            FOLDER: str(folder),
            "CHAOS_STORE": store,
            "CHAOS_DEAD_LETTERS": dead,
            "CHAOS_WORK": str(folder / "work"),
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "15",
        }
        with AirflowStack(folder / "airflow", _ROOT / "chaos" / "dags", settings) as airflow:
            for dag in ("chaos", "chaos_replay", "homing_reconcile"):
                airflow.wait_for_dag(dag)
                airflow.unpause(dag)
            yield AirflowSubject(
                folder,
                store,
                dead,
                "",
                generator="trickle",
                spell=15.0,
                calm=20.0,
                patience=600.0,
                roles={
                    "generator": 0,
                    "Airflow triggerer": 0,
                    "Airflow scheduler": _JOBS * _CORES,  # its successor may run what is running a second time
                    "Airflow worker": _CORES,
                    "Airflow task": _CORES,
                    "Spark driver": _CORES,
                },
                tasks=_JOBS * _CORES,
                chunk=_SPARK_CHUNK,
                disk=disk,
                airflow=airflow,
            )


@dataclass(frozen=True)
class Kind:
    """A subject to be made, and its share of the time: how many of ten minutes' seconds it takes to do all harms."""

    share: float
    make: Callable[[Path], AbstractContextManager[Subject]]


KINDS = {
    "sqlite listen": Kind(26, _on_sqlite("listen")),
    "sqlite deliver": Kind(26, _on_sqlite("deliver")),
    "postgresql listen": Kind(30, _on_postgresql("listen")),
    "postgresql deliver": Kind(30, _on_postgresql("deliver")),
    "rabbitmq listen": Kind(34, _on_rabbitmq),
    "spark": Kind(144, _on_spark),
    "airflow": Kind(310, _on_airflow),
}


@contextmanager
def _postgresql() -> Iterator[PostgreSQL]:
    server = launch(PostgreSQL())
    assert isinstance(server, PostgreSQL)
    try:
        yield server
    finally:
        server.remove()


def _urls(database: str) -> tuple[str, str]:
    return f"{database}?store=orders&{_OPTIONS}", f"{database}?store=orders_dead&{_OPTIONS}"


@contextmanager
def small_disk(folder: Path) -> Iterator[Path | None]:
    """A file system that is easily filled; None, and a plain folder, where only root may make one."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(folder)]
    mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    if not mounted:
        print("no small file system can be mounted here: the disk is never full in this run", flush=True)
    try:
        yield folder if mounted else None
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(folder)], check=False)
