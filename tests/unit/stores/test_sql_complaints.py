"""What an error of a SQL store says: code and names, and no value of a message, not in its causes either."""

from __future__ import annotations

import traceback
from typing import Any

import pytest
import sqlalchemy as sa

from homing import open_store
from homing.binding import bind
from homing.errors import BindingError, StoreError, StoreUnavailableError
from homing.stores.sql.error_text import complaint

MARK = "Zk7f3aPayload"


@pytest.fixture(params=["postgresql", "mariadb"])
def server_database(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(request.param).empty_database())


def execute(database: str, *statements: str) -> None:
    engine = sa.create_engine(database)
    with engine.begin() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)
    engine.dispose()


def shown(error: BaseException) -> str:
    """Everything that a log would show of it."""
    return "".join(traceback.format_exception(error)) + repr(error)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ("alter table homing_orders add constraint honest check (message <> '{mark}')", "honest"),
        ("create unique index one_card on homing_orders (message)", "one_card"),
    ],
    ids=["check", "unique"],
)
def test_a_row_that_breaks_a_constraint_is_told_by_the_constraints_name(
    server_database: str, change: str, name: str
) -> None:
    with open_store(f"{server_database}?store=orders") as store:
        store.store("none" if "check" in change else MARK)
        length = "(64)" if server_database.startswith("mysql") else ""
        execute(server_database, change.format(mark=MARK).replace("(message)", f"(message{length})"))

        with pytest.raises(StoreError) as caught:
            store.store(MARK)

    assert not isinstance(caught.value, StoreUnavailableError)
    told = str(caught.value)
    # MariaDB does not say which unique index it was, but refuses the row.
    assert name in told or "(error 1048)" in told
    assert "SQLSTATE 23" in told or "(error 4025)" in told or "(error 1048)" in told
    assert MARK not in shown(caught.value)


def test_a_unique_row_of_sqlite_is_told_by_its_columns(tmp_path: Any) -> None:
    database = f"sqlite:///{tmp_path}/orders.db"
    with open_store(f"{database}?store=orders") as store:
        store.store(MARK)
        execute(database, "create unique index one_card on homing_orders (message)")
        with pytest.raises(StoreError, match=r"UNIQUE constraint failed: homing_orders\.message") as caught:
            store.store(MARK)

    assert MARK not in shown(caught.value)


# ruff: noqa: S608 - statements with a mark where a value would be
REFUSED: dict[str, tuple[str, ...]] = {
    "postgresql": (
        f"select '{MARK}'::int",
        f"select '{MARK}'::json",
        f"do $$ begin raise exception '{MARK}'; end $$",
        f"insert into things (name) values ('{MARK}'), ('{MARK}')",
        f"insert into things (name, short) values ('b', '{MARK}')",
        f"insert into things (name, number) values ('{MARK}', null)",
        f"insert into things (name, parent) values ('c', '{MARK}')",
    ),
    "mysql": (
        f"insert into things (name) values ('{MARK}'), ('{MARK}')",
        f"insert into things (name) values ('{MARK}'' for key ''{MARK}'), ('{MARK}'' for key ''{MARK}')",
        f"insert into things (name, short) values ('b', '{MARK}')",
        f"insert into things (name, number) values ('{MARK}', null)",
        f"insert into things (name, number) values ('b', '{MARK}')",
        f"insert into things (name, parent) values ('c', '{MARK}')",
        f"signal sqlstate '45000' set message_text = '{MARK}'",
        f"select nothing '{MARK}' here",
        f"select date_add('{MARK}', interval 1 day) from",
    ),
}


def test_whatever_the_server_refuses_is_told_without_a_value(server_database: str) -> None:
    kind = server_database.partition("+")[0]
    execute(
        server_database,
        "create table things (name varchar(60) primary key, short varchar(3), number int not null default 1, "
        "parent varchar(60), constraint known foreign key (parent) references things (name))",
    )
    engine, told, quoting = sa.create_engine(server_database, hide_parameters=True), [], 0
    for statement in REFUSED[kind]:
        with pytest.raises(sa.exc.DBAPIError) as caught, engine.begin() as connection:
            connection.exec_driver_sql(statement)
        quoting += MARK in str(caught.value.orig)
        told.append(complaint(caught.value))
    engine.dispose()

    assert quoting >= 4  # as the driver tells them
    assert [text for text in told if MARK in text] == []
    names = ("things_pkey", "column number", "constraint known") if kind == "postgresql" else (
        "key 'PRIMARY'", "column 'short'", "column 'number'", "constraint `known`")  # fmt: skip
    assert [name for name in names if not any(name in text for text in told)] == [], told


def test_a_text_of_sqlite_that_is_none_is_not_quoted(tmp_path: Any) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path}/x.db")
    with pytest.raises(sa.exc.DBAPIError) as caught, engine.begin() as connection:
        connection.exec_driver_sql(f"select cast(x'ff' || '{MARK}' as text) as card").all()
    engine.dispose()

    assert MARK in str(caught.value.orig)
    assert complaint(caught.value) == "Could not decode to UTF-8 column 'card'"


def test_a_server_that_is_away_is_told_in_the_drivers_words(server_database: str) -> None:
    nowhere = sa.make_url(server_database).set(port=1).render_as_string(hide_password=False)
    store = open_store(f"{nowhere}?store=orders")
    with pytest.raises(StoreUnavailableError, match=r"(?i)refused"):
        store.store(1)
    store.close()


def test_what_pydantic_shows_of_a_content_is_not_told_as_a_cause() -> None:
    from pydantic import BaseModel

    class Card(BaseModel):
        number: int

    with pytest.raises(BindingError, match="number") as caught:
        bind(Card)({"number": MARK})

    assert MARK not in shown(caught.value)
