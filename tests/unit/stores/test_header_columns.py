"""The application's own columns: a header that does not fit is an error that names message, header and column."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from homing import Message
from homing.errors import StoreError, UnstorableContentError
from homing.stores.sql import SqlStore
from tests.unit.stores.databases import execute, opened

pytestmark = pytest.mark.services
MARK = "hunter2-hunter2"


@pytest.fixture
def store(database: str) -> Iterator[SqlStore]:
    with opened(database, columns="region,customer:bigint") as store:
        yield store


def orders(count: int, bad: int, header: object) -> list[Message]:
    return [Message(f"m{n}", n, headers={"region": header if n == bad else "eu"}) for n in range(count)]


@pytest.mark.parametrize("count", [3, 200])  # as statements, and as one COPY on PostgreSQL
@pytest.mark.parametrize("header", [f"{MARK}\0", MARK * 40, [MARK], {"a": MARK}])
def test_a_producer_hears_which_of_many_does_not_fit_and_none_is_stored(
    store: SqlStore, count: int, header: object
) -> None:
    with pytest.raises(UnstorableContentError, match=f"message m{count - 1} .*'region'.*column") as caught:
        store.store_many(orders(count, count - 1, header))

    assert MARK not in "".join(traceback.format_exception(caught.value))
    assert sum(store.count().values()) == 0


@pytest.mark.parametrize("count", [3, 200])
@pytest.mark.parametrize("mine", [True, False])
def test_a_producer_hears_which_one_the_database_itself_refuses(
    store: SqlStore, engine: sa.Engine, caplog: pytest.LogCaptureFixture, count: int, mine: bool
) -> None:
    """A column that somebody made stricter: the same, in a transaction of the store's and in one of the caller's."""
    store.count()
    _make_strict(engine)
    caplog.set_level(logging.DEBUG)

    with engine.connect() as connection:
        transaction = connection if mine else None
        with pytest.raises(UnstorableContentError, match=r"message m1 .*'region'.*column") as caught:
            store.store_many(orders(count, 1, MARK), transaction=transaction)
        assert connection.execute(sa.text("select count(*) from homing_orders")).scalar() == 0
        if not mine:
            connection.rollback()
        store.store_many(orders(count, -1, ""), transaction=transaction)
        connection.commit()

    assert MARK not in "".join(traceback.format_exception(caught.value))
    assert MARK not in caplog.text
    assert store.count()["available"] == count


def test_a_database_that_refuses_something_else_is_not_the_messages_fault(store: SqlStore, engine: sa.Engine) -> None:
    store.count()
    if engine.dialect.name == "sqlite":
        execute(engine, "create trigger closed before insert on homing_orders begin select raise(abort, 'no'); end")
    else:
        execute(engine, "alter table homing_orders add column other integer not null, add check (other > 0)")

    with pytest.raises(StoreError):
        store.store_many(orders(3, -1, ""))


def test_both_of_two_headers_that_do_not_fit_are_named(store: SqlStore, engine: sa.Engine) -> None:
    store.count()
    if engine.dialect.name == "sqlite":
        unfit = "length(new.region) > 8 or new.customer > 9"
        execute(
            engine,
            f"create trigger strict before insert on homing_orders when {unfit} begin select raise(abort, 'no'); end",
        )
    else:
        execute(engine, "alter table homing_orders add check (length(region) <= 8), add check (customer <= 9)")

    with pytest.raises(UnstorableContentError, match=r"message m7 .*region.*customer"):
        store.store(Message("m7", 1, headers={"region": "xxxxxxxxx", "customer": 10}))


def test_digits_are_a_number_and_a_number_is_a_text(store: SqlStore, engine: sa.Engine) -> None:
    store.store("x", headers={"region": 49, "customer": "-0042"})
    store.store("y", headers={"region": True, "customer": None})

    with engine.connect() as connection:
        rows = connection.execute(sa.text("select region, customer from homing_orders order by sequence")).all()
    assert [tuple(row) for row in rows] == [("49", -42), ("true", None)]


def _make_strict(engine: sa.Engine) -> None:
    """Regions have at most eight characters from now on."""
    if engine.dialect.name == "postgresql":
        execute(engine, "alter table homing_orders alter column region type varchar(8)")
    elif engine.dialect.name == "mysql":
        execute(engine, "alter table homing_orders modify column region varchar(8)")
    else:
        execute(
            engine,
            "create trigger strict before insert on homing_orders when length(new.region) > 8 "
            "begin select raise(abort, 'strict'); end",
        )
