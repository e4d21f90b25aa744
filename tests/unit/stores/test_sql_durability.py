"""What `store` confirmed is on the disk, whatever the server is told by others; a server that cannot is refused."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from homing.errors import ConfigurationError
from homing.stores.sql import durability
from tests.servers import MariaDB, PostgreSQL, launch
from tests.unit.stores.databases import opened

#: A log writer that sleeps: what a commit does not write itself is not written.
FORGETFUL = ["wal_writer_delay=10s", "synchronous_commit=off", "autovacuum=off"]


def forgets(engine: sa.Engine, where: str) -> None:
    """Has the server forget what it confirmed, as somebody may set it for a database or a role."""
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql(f"alter {where} set synchronous_commit = off")


def kill_everything(server: PostgreSQL) -> None:
    """Ends the server and all its processes at the same moment, as a machine that stops; then starts it again."""
    main = int((server.folder / "data" / "postmaster.pid").read_text().splitlines()[0])
    processes = [main, *(child for child in _processes() if _parent(child) == main)]
    for how in (signal.SIGSTOP, signal.SIGKILL):
        for process in processes:
            os.kill(process, how)
    server.restart()


def _processes() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def _parent(process: int) -> int:
    try:
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError):
        return 0


@pytest.fixture(scope="module")
def forgetful() -> Iterator[PostgreSQL]:
    server = PostgreSQL(FORGETFUL, in_memory=True)
    launch(server)
    yield server
    server.remove()


@pytest.mark.services
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc")
@pytest.mark.parametrize("told_by", ["server", "database", "role"])
def test_what_was_confirmed_is_there_after_everything_is_killed(forgetful: PostgreSQL, told_by: str) -> None:
    url = forgetful.empty_database()
    engine = sa.create_engine(url)
    if told_by != "server":
        forgets(engine, f"database {sa.make_url(url).database}" if told_by == "database" else "role postgres")
    with opened(url) as store:
        ids = [store.store(number) for number in range(50)]
        kill_everything(forgetful)
    engine.dispose()
    with opened(url) as store:
        assert store.view.present(ids) == set(ids)


@pytest.mark.services
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc")
def test_what_was_stored_in_a_transaction_of_ones_own_is_there_too(forgetful: PostgreSQL) -> None:
    url = forgetful.empty_database()
    engine = sa.create_engine(url)
    with opened(url) as store:
        store.count()
        ids = []
        for number in range(50):
            with engine.begin() as connection:
                ids.append(store.store(number, transaction=connection))
        kill_everything(forgetful)
    engine.dispose()
    with opened(url) as store:
        assert store.view.present(ids) == set(ids)


@pytest.mark.services
def test_a_stricter_setting_stays_as_it_is(postgresql: PostgreSQL) -> None:
    url = postgresql.empty_database()
    engine = sa.create_engine(url)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql(f"alter database {sa.make_url(url).database} set synchronous_commit = remote_apply")
    with opened(url) as store, store._database._engine.connect() as connection:
        assert connection.exec_driver_sql("show synchronous_commit").scalar() == "remote_apply"
    engine.dispose()


@pytest.mark.services
@pytest.mark.parametrize(
    ("kind", "setting"), [(PostgreSQL, "fsync=off"), (MariaDB, "innodb-flush-log-at-trx-commit=2")]
)
def test_a_server_that_may_forget_is_refused_unless_that_is_accepted(
    kind: type[PostgreSQL] | type[MariaDB], setting: str, caplog: pytest.LogCaptureFixture
) -> None:
    durability._warned.clear()
    server = launch(kind([setting], in_memory=True))
    try:
        url = server.empty_database()
        with opened(url) as store, pytest.raises(ConfigurationError, match="durability=relaxed"):
            store.store("a")
        with opened(url, durability="relaxed") as store, caplog.at_level(logging.WARNING):
            store.store("a")
            assert store.count()["available"] == 1
    finally:
        server.remove()
    assert "may be gone after a power failure" in caplog.text


def test_a_sqlite_transaction_of_ones_own_that_may_be_forgotten_is_refused(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/inbox.db"
    engine = sa.create_engine(url)
    sa.event.listen(engine, "connect", lambda connection, _: connection.execute("pragma synchronous = off"))
    with opened(url) as store:
        with engine.begin() as connection, pytest.raises(ConfigurationError, match="synchronous=0"):
            store.store("a", transaction=connection)
        assert store.count()["available"] == 0
    with opened(url, durability="relaxed") as store:
        with engine.begin() as connection:
            store.store("a", transaction=connection)
        assert store.count()["available"] == 1
    engine.dispose()


def test_durability_is_one_of_two(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="full, relaxed"):
        opened(f"sqlite:///{tmp_path}/inbox.db", durability="some")
