"""A database that is away, in each of its ways, is an outage; what waiting does not mend is another error."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from homing.errors import StoreError, StoreUnavailableError, TableMissingError
from homing.ledger import DELIVERED, Entry
from homing.message import MessageRef
from homing.stores.sql import SqlStore
from tests.bounded import outcome_of
from tests.proxy import Proxy
from tests.servers import MariaDB, PostgreSQL, Server
from tests.unit.stores.databases import execute, opened

NOBODY = 65534

# -- what servers say ------------------------------------------------------------------------------------------


@contextmanager
def failing_inserts(database: str, code: str) -> Iterator[None]:
    """The database itself answers every insert with this error."""
    engine = sa.create_engine(database)
    if engine.dialect.name == "postgresql":
        body = f"begin raise exception using errcode = '{code}', message = 'as it is told'; end"
        execute(engine, f"create function fail() returns trigger language plpgsql as $$ {body} $$")
        execute(engine, "create trigger fail before insert on homing_orders for each row execute function fail()")
    else:
        signal = f"signal sqlstate 'HY000' set mysql_errno = {code}, message_text = 'as it is told'"
        execute(engine, f"create trigger fail before insert on homing_orders for each row {signal}")
    yield
    engine.dispose()


AWAY = {
    "postgresql": ("53100", "53200", "53300", "25006", "57014", "57P01", "57P03", "58030", "55P03", "08006"),
    "mariadb": ("1021", "1040", "1053", "1114", "1205", "1290", "1317", "1836", "1969"),
}
NOT_AWAY = {"postgresql": ("P0001", "22001", "23514", "42501", "XX000"), "mariadb": ("1048", "1142", "1264", "1644")}
SERVERS = ("postgresql", "mariadb")


@pytest.mark.services
@pytest.mark.parametrize(("server", "code"), [(name, code) for name in SERVERS for code in AWAY[name]])
def test_an_outage_is_told_as_one(server: str, code: str, request: pytest.FixtureRequest) -> None:
    database = request.getfixturevalue(server).empty_database()
    with opened(database) as store:
        store.count()
        with failing_inserts(database, code), pytest.raises(StoreUnavailableError, match="as it is told"):
            store.store("a")


@pytest.mark.services
@pytest.mark.parametrize(("server", "code"), [(name, code) for name in SERVERS for code in NOT_AWAY[name]])
def test_what_waiting_does_not_mend_is_no_outage(server: str, code: str, request: pytest.FixtureRequest) -> None:
    database = request.getfixturevalue(server).empty_database()
    with opened(database) as store:
        store.count()
        with failing_inserts(database, code), pytest.raises(StoreError, match=code) as caught:
            store.store("a")
    assert not isinstance(caught.value, StoreUnavailableError)


# -- real outages ----------------------------------------------------------------------------------------------


@pytest.mark.services
def test_a_postgresql_that_is_only_to_be_read_from_is_away_and_comes_back(postgresql: PostgreSQL) -> None:
    database = postgresql.empty_database()
    name = sa.make_url(database).database
    engine = sa.create_engine(postgresql.url, isolation_level="AUTOCOMMIT")
    with opened(database) as store, engine.connect() as connection:
        store.store("before")
        connection.exec_driver_sql(f"alter database {name} set default_transaction_read_only = on")
        store.close()  # the setting is for connections to come
        with pytest.raises(StoreUnavailableError, match="read-only"):
            store.store("meanwhile")
        with pytest.raises(StoreUnavailableError, match="read-only"):
            store.retrieve()
        assert store.count()["available"] == 1

        connection.exec_driver_sql(f"alter database {name} set default_transaction_read_only = off")
        store.close()
        store.store("after")
        assert store.count()["available"] == 2
    engine.dispose()


@pytest.mark.services
def test_a_mariadb_that_is_only_to_be_read_from_is_away_and_comes_back(mariadb: MariaDB) -> None:
    database = mariadb.empty_database()
    name = sa.make_url(database).database
    engine = sa.create_engine(f"mysql+pymysql://root@/mysql?unix_socket={mariadb.folder}/socket")
    # Who has every right may write all the same.
    execute(engine, f"create or replace user plain_{name}@'127.0.0.1'")
    execute(engine, f"grant all on {name}.* to plain_{name}@'127.0.0.1'")
    with opened(database.replace("homing@", f"plain_{name}@")) as store:
        store.store("before")
        execute(engine, "set global read_only = 1")
        try:
            with pytest.raises(StoreUnavailableError, match="read-only"):
                store.store("meanwhile")
        finally:
            execute(engine, "set global read_only = 0")
        store.store("after")
        assert store.count()["available"] == 2
    engine.dispose()


@pytest.mark.services
def test_a_server_with_too_many_connections_is_away(postgresql: PostgreSQL) -> None:
    database = postgresql.empty_database()
    engine = sa.create_engine(database)
    name = sa.make_url(database).database
    execute(engine, f"create role few_{name} login connection limit 0")
    with (
        opened(database.replace("postgres@", f"few_{name}@")) as store,
        pytest.raises(StoreUnavailableError, match="too many connections"),
    ):
        store.store("a")
    engine.dispose()


def test_a_pool_with_no_connection_left_is_away(database: str) -> None:
    with opened(database, timeout=0.2) as store:
        store.count()
        taken = [store._database._engine.connect() for _ in range(15)]
        with pytest.raises(StoreUnavailableError):
            store.store("a")
        taken.pop().close()
        store.store("a")
        for connection in taken:
            connection.close()


def test_a_sqlite_database_that_is_full_is_away_and_takes_messages_again(tmp_path: Path) -> None:
    with opened(f"sqlite:///{tmp_path}/inbox.db") as store:
        store.store("before")
        with store._database._engine.connect() as connection:
            connection.exec_driver_sql("pragma max_page_count = 1")
        with pytest.raises(StoreUnavailableError, match="full"):
            store.store("x" * 1_000_000)
        with store._database._engine.connect() as connection:
            connection.exec_driver_sql("pragma max_page_count = 1000000")
        store.store("x" * 1_000_000)
        assert store.count()["available"] == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else for a while")
def test_a_sqlite_database_that_must_not_be_written_to_is_away(tmp_path: Path) -> None:
    with opened(f"sqlite:///{tmp_path}/inbox.db") as store:
        store.store("before")
    tmp_path.chmod(0o755)
    for folder in tmp_path.parents:
        if folder.stat().st_mode & 0o001 == 0:
            folder.chmod(folder.stat().st_mode | 0o011)
    os.seteuid(NOBODY)
    try:
        with opened(f"sqlite:///{tmp_path}/inbox.db") as store, pytest.raises(StoreUnavailableError):
            store.store("a")
    finally:
        os.seteuid(0)


# -- a network that is half open -------------------------------------------------------------------------------


def through(proxy: Proxy, server: Server) -> str:
    return server.empty_database().replace(f":{server.port}/", f":{proxy.port}/")


@pytest.mark.services
@pytest.mark.parametrize("name", SERVERS)
def test_a_network_that_brings_nothing_is_not_waited_for_for_ever(name: str, request: pytest.FixtureRequest) -> None:
    server = request.getfixturevalue(name)
    with Proxy(server.port) as proxy, opened(through(proxy, server), timeout=1) as store:
        store.store("before", id="1")
        with proxy.half_open():
            assert isinstance(outcome_of(lambda: store.store("meanwhile", id="2")), StoreUnavailableError)
        assert proxy.counts["withheld"]
        store.store("meanwhile", id="2")
        assert store.count()["available"] == 2


@pytest.mark.services
@pytest.mark.parametrize("name", SERVERS)
def test_a_server_that_does_not_let_anybody_in_is_not_waited_for_for_ever(
    name: str, request: pytest.FixtureRequest
) -> None:
    server = request.getfixturevalue(name)
    with Proxy(server.port) as proxy, proxy.half_open(), opened(through(proxy, server), timeout=1) as store:
        assert isinstance(outcome_of(lambda: store.store("a")), StoreUnavailableError)


@pytest.mark.services
@pytest.mark.parametrize("name", SERVERS)
def test_a_slow_network_is_no_outage(name: str, request: pytest.FixtureRequest) -> None:
    server = request.getfixturevalue(name)
    with Proxy(server.port) as proxy, opened(through(proxy, server), timeout=2) as store:
        store.store("before")
        with proxy.slow(0.3):
            store.store_many(range(200))  # takes longer than the timeout, and says something all the time
        assert store.count()["available"] == 201


# -- a table that is gone --------------------------------------------------------------------------------------

USES: dict[str, Callable[[SqlStore], Any]] = {
    "store": lambda store: store.store("b"),
    "claim": lambda store: store.claim(1),
    "settle": lambda store: store.acknowledge("1"),
    "count": lambda store: store.count(),
}


@pytest.mark.parametrize("use", USES)
def test_a_dropped_table_is_told_as_one(database: str, engine: sa.Engine, use: str) -> None:
    with opened(database) as store:
        store.store("a", id="1")
        assert store.retrieve() is not None
        execute(engine, "drop table homing_orders")
        with pytest.raises(TableMissingError, match="homing_orders") as caught:
            USES[use](store)
    assert not isinstance(caught.value, StoreUnavailableError)


def test_a_dropped_ledger_is_told_as_one(database: str, engine: sa.Engine) -> None:
    with opened(database) as store:
        store.store("a", id="1")
        ledger = store.ledger()
        fence = ledger.open_step("run", "step", 60)
        execute(engine, "drop table homing_orders__ledger")
        with pytest.raises(TableMissingError, match="homing_orders__ledger"):
            ledger.record(fence, [Entry(MessageRef("", 1, "1"), "crm", DELIVERED, batch_id="run")])
        with pytest.raises(TableMissingError, match="homing_orders__ledger"):
            ledger.known(["1"])


def test_a_dropped_table_is_made_anew_by_who_opens_the_store_again(database: str, engine: sa.Engine) -> None:
    with opened(database) as store:
        store.store("a")
        execute(engine, "drop table homing_orders")
    with opened(database) as store:
        store.store("b")
        assert store.count()["available"] == 1
