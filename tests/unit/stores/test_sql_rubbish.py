"""What people write into the table by hand, and is nothing a message can hold, harms nobody but itself."""

from __future__ import annotations

from base64 import b64decode
from typing import Any

import pytest
import sqlalchemy as sa

from homing.delivery import records
from homing.stores.sql import SqlStore
from tests.unit.stores.databases import execute, opened

_NOT_UTF8 = "cast(x'636166e9' as text)"  # "café" in Latin-1


@pytest.fixture
def table(url: str, store: SqlStore) -> sa.Engine:
    """The store's database, with three messages in it."""
    store.store_many(["before", "broken", "after"])
    return sa.create_engine(url)


def spoil(table: sa.Engine, **columns: str) -> None:
    values = ", ".join(f"{name} = {value}" for name, value in columns.items())
    execute(table, f"update homing_orders set {values} where message = 'broken'")  # noqa: S608


SPOILT = [
    {"message": _NOT_UTF8},
    {"message": "x'00ff'"},
    {"message": _NOT_UTF8, "encoding": "'json'"},
    {"id": _NOT_UTF8},
    {"encoding": _NOT_UTF8},
    {"headers": _NOT_UTF8},
    {"headers": "7"},
    {"headers": "'[1]'"},
    {"subject": _NOT_UTF8},
    {"correlation_id": "x'ff'"},
    {"priority": "'high'"},
    {"epoch": "'often'"},
    {"time_created": "'yesterday'"},
    {"time_scheduled": "'today'"},
    {"time_scheduled": "'today'", "time_next": "0"},
    {"time_to_live": "'long'"},
]


@pytest.mark.parametrize("columns", SPOILT, ids=lambda columns: " ".join(f"{n}={v}" for n, v in columns.items()))
def test_rubbish_in_a_column_is_kept_aside_and_its_neighbours_are_delivered(
    columns: dict[str, str], store: SqlStore, table: sa.Engine
) -> None:
    spoil(table, **columns)

    claimed = store.claim(10)

    assert sorted(message.content for message in claimed) == ["after", "before"]
    (dead,) = store.dead_messages()
    assert dead["dead_letter_reason"] == "unreadable"
    assert store.count()["dead"] == 1
    (shown,) = store.browse(state="dead")
    assert isinstance(shown.content, str)
    store.settle(claimed)
    assert store.claim(10) == []


def test_a_count_that_is_none_begins_anew(store: SqlStore, table: sa.Engine) -> None:
    spoil(table, crashes="'many'", lock_token="'nobody'", time_next="1")  # noqa: S106 - the column's name

    assert [message.content for message in store.claim(10)] == ["broken", "before", "after"]


def test_a_time_that_is_none_is_refused_where_it_would_hide_a_message(store: SqlStore, table: sa.Engine) -> None:
    with pytest.raises(sa.exc.IntegrityError):
        spoil(table, time_next="'soon'")

    assert [message.content for message in store.claim(10)] == ["before", "broken", "after"]


def test_what_is_kept_aside_is_kept_to_the_letter(store: SqlStore, table: sa.Engine) -> None:
    spoil(table, message=_NOT_UTF8)

    store.claim(10)

    with table.connect() as connection:
        kept = connection.execute(sa.text("select hex(message) from homing_orders where time_dead is not null"))
        assert kept.scalar() == "636166E9"
    assert store.browse(state="dead")[0].content == "caf\\xe9"


def test_its_own_session_goes_on_behind_it(store: SqlStore, table: sa.Engine) -> None:
    execute(table, "update homing_orders set session_id = 's'")
    spoil(table, time_scheduled="1", time_next="1", message=_NOT_UTF8)

    assert store.claim(10) == []
    assert [message.content for message in store.claim(10, session_id="s")] == ["before", "after"]


def test_a_batch_with_rubbish_in_it_is_read_to_its_end(store: SqlStore, table: sa.Engine) -> None:
    spoil(table, message=_NOT_UTF8)

    lease = store.lease_batch(10, batch_id="run", lease=60)

    assert lease is not None
    found = list(store.batch_rows(lease))
    assert [row["message"] for row in found] == ["before", b"caf\xe9", "after"]
    failure = records.failure(found[1], {}, "chain", "run", copies=False)
    assert failure.content["message"]["encoding"] == "base64"
    assert b64decode(failure.content["message"]["body"]) == b"caf\xe9"
    store.sibling("failures").store(failure)


@pytest.mark.parametrize("column", ["epoch", "crashes"])
def test_the_largest_count_there_is_stops_nobody(column: str, database: str, engine: sa.Engine) -> None:
    with opened(database) as store:
        store.store_many(["before", "broken", "after"])
        spoil(engine, **{column: "2147483647", "lock_token": "'x'"})

        contents: list[Any] = [message.content for message in store.claim(10)]

        assert contents == (["before", "broken", "after"] if column == "epoch" else ["before", "after"])


@pytest.mark.parametrize(
    "columns",
    [
        {"encoding": "'morse'"},
        {"encoding": "'json'"},
        {"encoding": "'base64'", "message": "'*'"},
        {"headers": "'{'"},
        {"headers": "'7'"},
    ],
)
def test_what_any_database_lets_people_write_is_kept_aside(
    columns: dict[str, str], database: str, engine: sa.Engine
) -> None:
    with opened(database) as store:
        store.store_many(["before", "broken", "after"])
        spoil(engine, **columns)

        assert [message.content for message in store.claim(10)] == ["before", "after"]
        assert [row["dead_letter_reason"] for row in store.dead_messages()] == ["unreadable"]
