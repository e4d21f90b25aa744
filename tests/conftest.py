"""What holds for every test run, and the servers its tests share, started when the first test asks for them."""

from __future__ import annotations

import os
import re
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from homing.invocation import guard
from homing.stores.rabbitmq import topology
from tests.rabbitmq_server import RabbitMQ, running_rabbitmq
from tests.servers import MariaDB, PostgreSQL, launch
from tests.servicebus.server import ServiceBusServer

# Importing Airflow makes a home where there is none: never the one of whoever runs the tests.
os.environ["AIRFLOW_HOME"] = tempfile.mkdtemp(prefix="homing-tests-airflow-")
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
# Spark jobs as short as those of the tests end before the better of Java's compilers has paid for itself.
os.environ["SPARK_SUBMIT_OPTS"] = "-XX:TieredStopAtLevel=1"

#: Folders whose tests share what is dear to start: one Airflow, one Spark session, one broker.
TOGETHER = ("airflow", "spark", "rabbitmq")
#: Files of those folders that start something of their own, and may as well do so elsewhere.
APART = (
    "test_cluster",
    "test_command_line",
    "test_connect",
    "test_dag_files",
    "test_marks",
    "test_replay_form",
    "test_secure_cluster",
)
#: In the names of tests everywhere else: what all that need it share, wherever they are.
ALL_OF = ("rabbitmq", "SimpleAuth", "FAB")
#: In the names of tests everywhere else: what each process of the tests has one of, and what parts a file.
EACH_HAS = ("mariadb", "postgresql", "servicebus", "service")
#: What takes longest, first: the short tests fill the gaps that it leaves at the end.
LONGEST = (
    "airflow",
    "test_delivery_dag",
    "spark",
    "rabbitmq",
    "trust",
    "simulation",
    "chaos",
    "intake",
    "deploy",
    "bus",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def turn(item: pytest.Item) -> int:
        words = re.findall(r"\w+", item.nodeid.partition("::")[0])
        return next((place for place, thing in enumerate(LONGEST) if thing in words), len(LONGEST))

    items.sort(key=turn)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return ByWhatTheyShare(config, log)


class ByWhatTheyShare(LoadScopeScheduling):
    """Sends tests to the processes file by file, and those that share something dear to the same one. The tests of one
    file on several databases share nothing; those of the simulation take long besides, and are sent one by one.

    (The marks of `--dist loadgroup` would say it too, but do not reach the scheduler with this pytest.)
    """

    def _split_scope(self, nodeid: str) -> str:
        path, _, test = nodeid.partition("::")
        _, folder, *_, file = path.removesuffix(".py").split("/")
        words = set(re.findall(r"\w+", test.partition("[")[2]))
        if folder == "simulation":
            return nodeid
        if folder in TOGETHER:
            return path if file in APART else folder
        if folder != "unit" and (shared := words & set(ALL_OF)):
            return f"all of {min(shared)}"
        return f"{path} {' '.join(sorted(words & set(EACH_HAS)))}"


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgreSQL]:
    server = PostgreSQL(in_memory=True)
    launch(server)
    yield server
    server.remove()


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariaDB]:
    server = MariaDB(["innodb-buffer-pool-size=64M"], in_memory=True)
    launch(server)
    yield server
    server.remove()


@pytest.fixture(scope="session")
def rabbitmq() -> Iterator[RabbitMQ]:
    with running_rabbitmq() as server:
        yield server


@pytest.fixture(scope="session")
def servicebus() -> Iterator[ServiceBusServer]:
    server = ServiceBusServer().start()
    yield server
    server.stop()


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a database with no tables in it."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/store.db"
    return str(request.getfixturevalue(request.param).empty_database())


@pytest.fixture(autouse=True)
def _hasty(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """New queues of RabbitMQ are trusted at once, where no broker is killed right after."""
    if "cautious" not in request.fixturenames:
        monkeypatch.setattr(topology, "SETTLED_AFTER", 0.0)


@pytest.fixture(autouse=True)
def _alone_within_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that runs a Spark task's code in this process leaves no share of its rates behind."""
    monkeypatch.setattr(guard, "_sharing", guard._Sharing())


@pytest.fixture
def cautious() -> None:
    """New queues of RabbitMQ are trusted only when they are old enough, as everywhere but in tests."""


@pytest.fixture
def keyboard() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt, as at a terminal; processes that a shell starts in the background ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
