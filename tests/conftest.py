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

#: What is dear to start, and is started once by each process of the tests that needs it.
SHARED = ("airflow", "spark", "rabbitmq", "mariadb", "postgresql", "servicebus", "SimpleAuth", "FAB")
#: What takes longest, first: the short tests fill the gaps that it leaves at the end.
LONGEST = ("airflow", "spark", "test_delivery_dag")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def turn(item: pytest.Item) -> int:
        words = re.findall(r"\w+", item.nodeid)
        return next((place for place, thing in enumerate(LONGEST) if thing in words), len(LONGEST))

    items.sort(key=turn)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return ByWhatTheyShare(config, log)


class ByWhatTheyShare(LoadScopeScheduling):
    """Sends tests to the processes file by file, and those that share something dear to the same one. Those of the
    simulation share nothing, and take long: they are sent one by one.

    (The marks of `--dist loadgroup` would say it too, but do not reach the scheduler with this pytest.)
    """

    def _split_scope(self, nodeid: str) -> str:
        words = re.findall(r"\w+", nodeid)
        alone = nodeid if "simulation" in words else nodeid.partition("::")[0]
        return next((thing for thing in SHARED if thing in words), alone)


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
