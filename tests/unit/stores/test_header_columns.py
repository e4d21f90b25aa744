"""The application's own columns: a header that does not fit is an error that names message, header and column."""

from __future__ import annotations

import json
import logging
import traceback
from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from homing import Message
from homing.errors import StoreError, UnstorableContentError
from homing.failure import letter_headers
from homing.row import HEADERS, to_message
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


TYPED = "price:decimal,weight:double,due:time,paid:boolean,details:json,customer:bigint,region"
#: Headers that fit, and what a message has that plain SQL stored with the same in its columns.
FITTING = {
    "price": [(12, 12), (12.5, 12.5), ("-0.000000001", -1e-09), ("123456.123456789", 123456.123456789), (0, 0)],
    "weight": [(1, 1.0), (1e300, 1e300), ("0.1", 0.1), (-5e-324, -5e-324), (2**53, 2.0**53)],
    "due": [
        ("2026-11-18T20:15:00.123456+01:00", "2026-11-18T19:15:00.123456+00:00"),
        ("2026-11-18 20:15Z", "2026-11-18T20:15:00+00:00"),
        ("9999-12-31T23:59:59.999999-00:00", "9999-12-31T23:59:59.999999+00:00"),
    ],
    "paid": [(True, True), (False, False), ("true", True), ("false", False)],
    "details": [({"a": [1, None, "x"]}, {"a": [1, None, "x"]}), ("text", "text"), (1.5, 1.5), (False, False), ([], [])],
    "customer": [("-0042", -42)],
    "region": [(49, "49")],
}
UNFITTING = {
    "price": ["1e99", 10**15, "0.0000000001", "1234567890.123456789", "many", True, [], float(2**60)],
    "weight": [2**53 + 1, "1e999", "0.1000000000000000055511151231257827021181583404541015625001", "x", True, {}],
    "due": ["2026-11-18", "2026-11-18T20:15", "2026-02-30T20:15Z", "0999-01-01T00:00Z", "tomorrow", 1763496900,
            "9999-12-31T23:59:59-01:00", "2026-11-18T20:15:00.1234567Z", "2026-11-18T20:15+24:00"],
    "paid": [1, 0, "yes", "TRUE", None.__class__.__name__],
    "details": [{"a": "\0"}, ["\0"], {"\0": 1}],
    "customer": [1.5, "1.5", True, 2**63],
}  # fmt: skip


@pytest.fixture
def typed(database: str) -> Iterator[SqlStore]:
    with opened(database, columns=TYPED) as store:
        yield store


@pytest.mark.parametrize("count", [1, 60])  # as statements, and as one COPY on PostgreSQL
@pytest.mark.parametrize("name", FITTING)
def test_a_column_of_any_type_comes_back_onto_the_message_also_when_plain_sql_wrote_it(
    typed: SqlStore, engine: sa.Engine, name: str, count: int
) -> None:
    for number, (header, _) in enumerate(FITTING[name]):
        typed.store_many([Message(f"{number}-{n}", "x", headers={name: header, "other": 1}) for n in range(count)])
    new_id = "'sql-' || id" if engine.dialect.name == "sqlite" else "concat('sql-', id)"
    copied = f"insert into homing_orders (id, message, {name}) select {new_id}, 'x', {name} from homing_orders"  # noqa: S608
    execute(engine, copied)

    claimed = {message.id: message.headers for message in typed.claim(1000)}

    for number, (header, shown) in enumerate(FITTING[name]):
        assert claimed[f"{number}-0"] == {name: header, "other": 1}
        assert claimed[f"sql-{number}-0"] == {name: shown}
        assert type(claimed[f"sql-{number}-0"][name]) is type(shown)
        assert typed.browse(1, ids=[f"sql-{number}-0"])[0].headers == {name: shown}


@pytest.mark.parametrize(("name", "header"), [(name, each) for name in UNFITTING for each in UNFITTING[name]])
def test_a_header_that_its_column_cannot_hold_exactly_is_refused_by_name(
    typed: SqlStore, name: str, header: object
) -> None:
    with pytest.raises(UnstorableContentError, match=f"message m1 .*'{name}'.*column") as caught:
        typed.store(Message("m1", 1, headers={name: header}))
    assert len(repr(header)) < 5 or repr(header) not in str(caught.value)
    assert typed.count()["available"] == 0


def test_a_column_that_plain_sql_changed_is_what_the_message_says_and_an_empty_one_says_nothing(
    typed: SqlStore, engine: sa.Engine
) -> None:
    typed.store(Message("m1", 1, headers={"region": "eu", "price": "1.10", "paid": True, "customer": None}))
    execute(engine, "update homing_orders set region = 'us', paid = null")

    (message,) = typed.claim(1)

    assert message.headers == {"region": "us", "price": "1.10", "paid": True, "customer": None}


def test_headers_from_columns_go_with_a_batch_a_dead_message_and_an_archived_one(
    typed: SqlStore, engine: sa.Engine
) -> None:
    typed.count()
    zone = "+00" if engine.dialect.name == "postgresql" else ""
    values = f"'m', 'x', '2026-11-18 20:15:00{zone}', 7"
    execute(engine, f"insert into homing_orders (id, message, due, customer) values ({values})")  # noqa: S608
    wanted = {"due": "2026-11-18T20:15:00+00:00", "customer": 7}
    lease = typed.lease_batch(1, batch_id="b", lease=60)
    assert lease is not None
    for row in (*typed.batch_rows(lease), *typed.batch_rows(lease, ids=["m"])):
        assert to_message(row).headers == wanted
    (page,) = typed.scans().message_pages(0, 100)
    assert json.loads(page[0][HEADERS]) == wanted
    if engine.dialect.name == "postgresql":
        typed.configure(acknowledged="archived")
    typed.settle(typed.claim(1, batch_id="b"))
    assert [message.headers for message in typed.browse(1, state="acknowledged")] == [wanted]


def test_what_a_driver_refuses_in_a_column_holds_up_no_message(typed: SqlStore, engine: sa.Engine) -> None:
    """What SQLite takes in any column, and PostgreSQL and MariaDB in some."""
    typed.count()
    odd = {
        "postgresql": ("due, price, weight", "'infinity', 'NaN', 'Infinity'"),
        "mysql": ("due, price, weight", "'0001-01-01 00:00:00', 99999999999999.123456789, 1e308"),
        "sqlite": ("due, price, weight, paid, details, customer", "'tomorrow', x'ff', 'heavy', 7, '{', 1.5"),
    }[engine.dialect.name]
    execute(engine, f"insert into homing_orders (id, message, {odd[0]}) values ('odd', 'x', {odd[1]})")  # noqa: S608
    typed.store("fine", id="fine")

    claimed = {message.id: message.headers for message in typed.claim(10)}

    assert claimed["fine"] == {}
    assert claimed["odd"] == {
        "postgresql": {"due": "infinity", "price": "NaN", "weight": "inf"},
        "mysql": {"due": "0001-01-01T00:00:00+00:00", "price": "99999999999999.123456789", "weight": 1e308},
        "sqlite": {
            "due": "tomorrow", "price": "\\xff", "weight": "heavy", "paid": 7, "details": "{", "customer": 1.5,
        },
    }[engine.dialect.name]  # fmt: skip


def test_a_listeners_dead_letter_is_kept_whatever_its_headers_are(typed: SqlStore) -> None:
    error = {"type": "ValueError", "message": "no", "handler": "crm", "attempt": 1, "stack": ""}
    headers = letter_headers(Message("m1", "x", headers={"due": "tomorrow", "customer": 7}), error, "orders")
    typed.store(Message("orders/m1", "x", headers=headers))

    (letter,) = typed.claim(1)
    assert letter.headers["due"] == "tomorrow"


def test_a_fresh_message_with_a_value_in_a_column_alone_is_found_among_many_without(
    typed: SqlStore, engine: sa.Engine
) -> None:
    typed.store_many([f"{n}" for n in range(30)])
    execute(engine, "update homing_orders set customer = 7 where message = '17'")

    found = [message for _ in range(3) for message in typed.claim(10)]

    assert {message.content for message in found if message.headers == {"customer": 7}} == {"17"}
    assert len(found) == 30
