"""init and grants."""

from __future__ import annotations

from pathlib import Path

import pymysql
import pytest
import sqlalchemy as sa

from homing import open_store
from homing.errors import NotPermittedError
from tests.servers import MariaDB
from tests.unit.cli.conftest import Shell


def test_init_makes_every_table_of_a_pipeline_once(homing: Shell) -> None:
    made = {row["table"] for row in homing.json("init", "--reason", "a new pipeline")}

    assert made == {
        "homing_orders",
        "homing_orders__ledger",
        "homing_orders__steps",
        "homing_orders__work",
        "homing_orders__forgotten",
        "homing_orders__operations",
        "homing_orders_failures",
        "homing_orders_failures__operations",
        "homing_orders_dead",
        "homing_orders_dead__operations",
    }
    assert homing.json("init") == []
    (one,) = homing.json("operations")
    assert (one["what"], one["why"], one["state"]) == ("init", "a new pipeline", "done")
    assert set(one["outcome"]["tables"]) >= {name for name in made if name.startswith("homing_orders__")}


def test_a_dry_run_prints_the_statements_and_makes_not_even_a_file(homing: Shell, tmp_path: Path) -> None:
    answer = homing("init", "--dry-run")

    assert answer.code == 0
    assert not (tmp_path / "x.db").exists()
    engine = sa.create_engine(f"sqlite:///{tmp_path}/x.db")
    with engine.begin() as connection:
        connection.connection.driver_connection.executescript(answer.out)  # type: ignore[union-attr]
    engine.dispose()
    assert homing.json("init") == []


def test_a_store_without_dead_letters_is_prepared_alone(
    homing: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("HOMING_DEAD_LETTER_STORE")

    assert {row["table"] for row in homing.json("init")} == {"homing_orders", "homing_orders__operations"}
    assert homing("init", "--dead-letter-store", "env:NOT_SET").code == 2
    assert homing("init", "--store", "memory://x").code == 2


def test_a_table_that_was_half_made_is_completed(homing: Shell, tmp_path: Path) -> None:
    homing("init")
    engine = sa.create_engine(f"sqlite:///{tmp_path}/x.db")
    with engine.begin() as connection:
        connection.execute(sa.text("DELETE FROM homing__tables WHERE name = 'homing_orders__ledger'"))
    engine.dispose()

    assert "-- table homing_orders__ledger is completed" in homing("init", "--dry-run").out
    assert [row["table"] for row in homing.json("init")] == ["homing_orders__ledger"]


def test_only_postgresql_has_grants(homing: Shell) -> None:
    answer = homing("grants", "--role", "producer", "--to", "app")

    assert (answer.code, answer.out, "PostgreSQL" in answer.err) == (2, "", True)


@pytest.mark.services
def test_on_mariadb_a_user_who_may_not_make_tables_uses_those_that_are_there(mariadb: MariaDB) -> None:
    database = sa.make_url(mariadb.empty_database())
    with pymysql.connect(unix_socket=f"{mariadb.folder}/socket", user="root", autocommit=True) as connection:
        cursor = connection.cursor()
        cursor.execute("CREATE OR REPLACE USER plain@'127.0.0.1'")
        cursor.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {database.database}.* TO plain@'127.0.0.1'")
    url = f"{database.set(username='plain').render_as_string()}?store=orders"

    with open_store(url) as store, pytest.raises(NotPermittedError, match="homing init"):
        store.store("one")
    with open_store(f"{database.render_as_string()}?store=orders") as owned:
        owned.store("made")
    with open_store(url) as store:
        store.store("one")
        store.settle(store.claim(2))
        assert store.count()["acknowledged"] == 2
