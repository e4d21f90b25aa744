"""Servers shared by all tests of a run, started when the first test asks for them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.rabbitmq_server import RabbitMQ, running_rabbitmq
from tests.servers import MariaDB, PostgreSQL, launch


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgreSQL]:
    # Without fsync a killed server still loses nothing: the kernel keeps what was written.
    server = PostgreSQL(["fsync=off"])
    launch(server)
    yield server
    server.remove()


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariaDB]:
    server = MariaDB(["innodb-flush-log-at-trx-commit=2", "innodb-buffer-pool-size=64M"])
    launch(server)
    yield server
    server.remove()


@pytest.fixture(scope="session")
def rabbitmq() -> Iterator[RabbitMQ]:
    with running_rabbitmq() as server:
        yield server
