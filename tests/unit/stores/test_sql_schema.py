"""The SQL store's tables, made and completed by itself; and which driver a URL means."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import sqlalchemy as sa

from homing import open_store
from homing.errors import ConfigurationError, MissingExtraError, StoreUnavailableError
from homing.stores.sql import tables
from homing.stores.sql.dialects import with_driver
from tests.unit.stores.databases import execute, opened

# -- the schema -------------------------------------------------------------------------------------------------

_START = """
import sys
from homing import open_store
with open_store(sys.argv[1]) as store:
    store.store("a")
    store.ledger().entries(["a"])
"""


def test_processes_that_start_at_once_make_the_tables_once(database: str) -> None:
    command = [sys.executable, "-c", _START, f"{database}?store=orders"]
    starting = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    errors = [process.communicate(timeout=120)[1] for process in starting]

    assert [process.returncode for process in starting] == [0] * 4, errors
    with opened(database) as store:
        assert store.count()["available"] == 4


def test_tables_are_not_changed_while_somebody_else_changes_them(mariadb: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("homing.stores.sql.dialects.SCHEMA_PATIENCE", 1)
    database = mariadb.empty_database()
    engine = sa.create_engine(database)
    with engine.connect() as somebody, opened(database) as store:
        somebody.execute(sa.text("select get_lock('homing_schema', 1)"))

        with pytest.raises(StoreUnavailableError, match="another process was still changing its tables"):
            store.store("a")

        somebody.execute(sa.text("select release_lock('homing_schema')"))
        store.store("a")
    engine.dispose()


def test_a_table_that_was_half_made_is_completed_with_its_messages(database: str, engine: sa.Engine) -> None:
    """On MariaDB, where a table is there before its indexes and its version."""
    with opened(database) as store:
        store.store("old", id="old")
    with engine.begin() as connection:
        on = " on homing_orders" if database.startswith("mysql") else ""
        connection.execute(sa.text(f"drop index homing_orders__session{on}"))
        connection.execute(sa.text("drop table homing__tables"))

    with opened(database, partitions=2) as store:
        store.store("new")

        assert {message.content for message in store.claim(10, partitions=[0, 1])} == {"old", "new"}
        assert store.count()["leased"] == 2
    names = {index["name"] for index in sa.inspect(engine).get_indexes("homing_orders")}
    assert {"homing_orders__session", "homing_orders__bucket"} <= names


@pytest.mark.parametrize(("version", "age"), [(tables.VERSION + 1, "newer"), (tables.VERSION - 1, "older")])
def test_a_table_of_another_version_is_refused_and_left_as_it_is(
    database: str, engine: sa.Engine, version: int, age: str
) -> None:
    with opened(database) as store:
        store.store("a")
    execute(engine, "update homing__tables set version = :version", version=version)

    refused = f"table homing_orders has schema version {version}, of an? {age} Homing.*use the Homing that made it"
    with opened(database) as store, pytest.raises(ConfigurationError, match=refused):
        store.retrieve()

    with engine.begin() as connection:
        assert connection.execute(sa.text("select version from homing__tables")).scalars().all() == [version]


# -- URLs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "driver"),
    [
        ("sqlite:///x.db", "sqlite+pysqlite"),
        ("postgresql://h/d", "postgresql+psycopg"),
        ("postgresql+psycopg://h/d", "postgresql+psycopg"),
        ("mysql://h/d", "mysql+pymysql"),
        ("mariadb://h/d", "mysql+pymysql"),
        ("mariadb+pymysql://h/d", "mysql+pymysql"),
    ],
)
def test_a_scheme_means_one_driver(url: str, driver: str) -> None:
    assert with_driver(sa.make_url(url)).drivername == driver


def test_another_driver_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="psycopg"):
        open_store("postgresql+asyncpg://h/d")


@pytest.mark.parametrize(("scheme", "extra"), [("postgresql", "postgres"), ("mysql", "mysql"), ("mariadb", "mysql")])
def test_a_missing_driver_is_an_error_that_names_the_extra(
    scheme: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("homing.stores.sql.dialects.find_spec", lambda name: None)

    with pytest.raises(MissingExtraError, match=rf'pip install "homing\[{extra}\]"'):
        open_store(f"{scheme}://h/d")
