"""The SQL store's tables, made and brought up to date by itself; and which driver a URL means."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import sqlalchemy as sa

from homing import open_store
from homing.errors import ConfigurationError, MissingExtraError, StoreUnavailableError
from homing.ledger import DELIVERED, FAILED, Entry
from homing.message import MessageRef
from homing.stores.sql import upgrade
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


def test_a_table_of_version_1_is_brought_up_to_date_with_its_messages(database: str, engine: sa.Engine) -> None:
    with opened(database) as store:
        store.store("old", id="old")
    with engine.begin() as connection:
        if not database.startswith("mysql"):
            connection.execute(sa.text("drop index homing_orders__session"))
        connection.execute(sa.text("alter table homing_orders drop column bucket"))
        connection.execute(sa.text("drop table homing__tables"))

    with opened(database, partitions=2) as store:
        store.store("new")

        assert {message.content for message in store.claim(10, partitions=[0, 1])} == {"old", "new"}
        assert store.count()["leased"] == 2


_LEDGER_2 = """
create table homing_orders__ledger (
    message_id varchar(255) not null, flow varchar(255) not null, destination varchar(255) not null,
    state varchar(16) not null, attempts integer not null, deliveries integer not null, result text, error text,
    snapshot text, batch_id varchar(255) not null, run_id varchar(255) not null, life bigint default 0 not null,
    time_recorded bigint not null, primary key (message_id, flow))
"""


def test_a_ledger_of_version_2_keeps_its_rows_and_takes_a_second_message_of_an_id(
    database: str, engine: sa.Engine
) -> None:
    with opened(database) as store:
        store.store("a")
    for statement in (
        _LEDGER_2,
        "create index homing_orders__ledger_batch on homing_orders__ledger (batch_id, state)",
        "insert into homing_orders__ledger values ('x', 'lake', '', 'failed', 1, 0, null, null, null, 'b', 'r', 1, 1)",
        "insert into homing__tables (name, version) values ('homing_orders__ledger', 2)",
    ):
        execute(engine, statement)

    with opened(database) as store:
        ledger = store.ledger()
        fence = ledger.open_step("run", "step", 60)
        ledger.record(fence, [Entry(MessageRef("a" * 16, 2, "x"), "lake", DELIVERED, batch_id="c")])

        states = {ref: flows["lake"].state for ref, flows in ledger.known(["x"]).items()}
        assert states == {MessageRef("", 1, "x"): FAILED, MessageRef("a" * 16, 2, "x"): DELIVERED}
        assert ledger.unfinished("b") == [MessageRef("", 1, "x")]
    indexes = [index["name"] for index in sa.inspect(engine).get_indexes("homing_orders__ledger")]
    assert indexes == ["homing_orders__ledger_batch"]


def test_a_table_of_a_newer_version_is_refused(database: str, engine: sa.Engine) -> None:
    with opened(database) as store:
        store.store("a")
    execute(engine, "update homing__tables set version = :newer", newer=upgrade.VERSION + 1)

    with opened(database) as store, pytest.raises(ConfigurationError, match="newer"):
        store.retrieve()


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
