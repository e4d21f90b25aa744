"""A claim reads little of messages that are as `store()` left them; nobody may notice, on none of the databases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import sqlalchemy as sa

from homing import Message
from homing.row import NEEDED, PLAIN, READ
from homing.store import CRASHED
from homing.stores.sql import SqlStore, rows
from homing.stores.sql.schema import messages_table
from tests.unit.stores.databases import execute, opened

PAST = datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=timezone.utc)


@pytest.fixture
def store(database: str) -> Iterator[SqlStore]:
    with opened(database) as store:
        yield store


def _store(**said: Any) -> Callable[[SqlStore, str], None]:
    return lambda store, name: store.store_many([Message(name, {"of": name}, **said)]) and None


def _release(store: SqlStore, name: str) -> None:
    store.store({"of": name}, id=name)
    held = store.claim(1000)
    store.settle(held, success=False)


def _reschedule(store: SqlStore, name: str) -> None:
    store.store({"of": name}, id=name)
    assert store.reschedule([name], PAST) == 1


#: Ways for a message to differ from a content that was just stored.
TOUCHED: dict[str, Callable[[SqlStore, str], None]] = {
    "headers": _store(headers={"from": "shop"}),
    "priority": _store(priority=-3),
    "later": _store(priority=3),
    "life": _store(time_to_live=timedelta(hours=1)),
    "due": _store(scheduled_at=PAST),
    "type": _store(content_type="order"),
    "correlated": _store(correlation_id="c"),
    "session": _store(session_id="s"),
    "partition": _store(partition_key="p"),
    "subject": _store(subject="x"),
    "recipient": _store(to="them"),
    "reply": _store(reply_to="us"),
    "dead": _store(dead_letter_reason="why", dead_letter_description="because", dead_letter_source="there"),
    "released": _release,
    "rescheduled": _reschedule,
}


def claimed_as_seen(store: SqlStore, limit: int = 1000) -> list[str]:
    """Claims, and compares each message with what anybody sees who only looks; returns the ids."""
    seen = {message.id: message for message in store.browse(1000)}
    claimed = store.claim(limit)
    for message in claimed:
        before = seen[message.id]
        now = {"lock_token": message.lock_token, "state": "leased", "delivery_count": before.delivery_count + 1}
        assert message == replace(before, **now)
    store.settle(claimed)
    return [message.id for message in claimed]


@pytest.mark.parametrize("touched", TOUCHED)
def test_a_message_that_has_more_is_read_whole_among_fresh_ones(store: SqlStore, touched: str) -> None:
    store.store_many([Message(f"a{number}", number) for number in range(5)])
    TOUCHED[touched](store, "other")
    store.store_many([Message(f"b{number}", str(number)) for number in range(5)])

    ids = claimed_as_seen(store)

    fresh = [f"{letter}{number}" for letter in "ab" for number in range(5)]
    assert sorted(ids) == sorted([*fresh, "other"])
    # Those of one kind come in the order in which they were stored, wherever the other one belongs.
    assert [one for one in ids if one != "other"] == fresh


@pytest.mark.parametrize("first", ["fresh", "touched"])
def test_fresh_and_other_messages_may_follow_each_other(store: SqlStore, first: str) -> None:
    for turn in range(4):
        if (turn % 2 == 0) == (first == "fresh"):
            ids = store.store_many([b"\0\xff", "text", {"json": [1, 2.5, None]}, 7, "nul\0"])
        else:
            ids = store.store_many([Message(f"{turn}-{number}", number, subject="x") for number in range(5)])
        assert claimed_as_seen(store, 2) + claimed_as_seen(store, 3) == ids


@pytest.mark.parametrize("touched", ["fresh", *TOUCHED])
def test_the_database_and_the_reader_agree_on_what_is_fresh(store: SqlStore, engine: sa.Engine, touched: str) -> None:
    TOUCHED.get(touched, _store())(store, "one")
    table = messages_table("orders")

    with engine.connect() as connection:
        *values, beyond = connection.execute(
            sa.select(*(table.c[name] for name in READ), rows.beyond_fresh(table))
        ).one()

    assert rows.is_fresh(tuple(values)) == (beyond is None) == (touched == "fresh")


def test_rows_are_told_apart_by_how_many_values_they_have() -> None:
    assert rows.FRESH_ROW not in (len(NEEDED), len(PLAIN), len(READ))


def test_plain_sql_that_leaves_a_lease_on_a_fresh_message_is_a_crash(store: SqlStore, engine: sa.Engine) -> None:
    store.store_many([Message(str(number), number) for number in range(3)])
    execute(engine, "update homing_orders set lock_token = 'x', crashes = 99 where id = '1'")

    assert [message.id for message in store.claim(3)] == ["0", "2"]
    assert [message.dead_letter_reason for message in store.browse(state="dead")] == [CRASHED]


def test_a_message_due_before_all_times_can_be_rescheduled(store: SqlStore, engine: sa.Engine) -> None:
    store.store(1, id="a")
    execute(engine, "update homing_orders set time_next = -5 where id = 'a'")

    assert store.reschedule(["a"], PAST) == 1
    assert [message.id for message in store.claim(1)] == ["a"]


def test_plain_sql_that_says_more_of_a_fresh_message_is_heard(store: SqlStore, engine: sa.Engine) -> None:
    store.store_many([Message(str(number), number) for number in range(4)])
    execute(engine, "update homing_orders set epoch = 4 where id = '1'")
    execute(engine, "update homing_orders set headers = '{\"a\": 1}' where id = '2'")
    execute(engine, "update homing_orders set time_scheduled = time_created + 1000000 where id = '3'")

    first, second, third, fourth = store.claim(4)

    assert [first.delivery_count, second.delivery_count, fourth.delivery_count] == [1, 5, 1]
    assert third.headers == {"a": 1}
    assert fourth.enqueued_at is not None
    assert fourth.scheduled_at == fourth.enqueued_at + timedelta(milliseconds=1)
