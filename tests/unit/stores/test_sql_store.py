"""The SQL store: durable, leased, fenced, and fair."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from homing import Message, open_store
from homing.errors import (
    LeaseLostError,
    NotInFlightError,
    StoreUnavailableError,
    TableMissingError,
    UnstorableContentError,
)
from homing.stores.sql import SqlStore, engine, queries
from tests.unit.stores.conftest import Clock

SYNCHRONOUS_FULL = 2


def test_a_stored_message_is_there_for_another_process(store: SqlStore, other: SqlStore) -> None:
    message_id = store.store({"n": 1}, headers={"trace": "x"})

    message = other.retrieve()

    assert message is not None
    assert (message.id, message.content, message.headers) == (message_id, {"n": 1}, {"trace": "x"})


def test_retrieving_leases_and_does_not_remove(store: SqlStore, other: SqlStore) -> None:
    store.store("a")

    assert store.retrieve() is not None
    assert other.retrieve() is None
    assert store.count()["leased"] == 1


def test_an_empty_store_has_nothing_to_retrieve(store: SqlStore) -> None:
    assert store.retrieve() is None


def test_messages_are_retrieved_in_the_order_they_came(store: SqlStore) -> None:
    store.store_many(["a", "b", "c"])

    assert [message.content for message in store.claim(3)] == ["a", "b", "c"]


def test_an_acknowledged_message_never_comes_back(store: SqlStore, clock: Clock) -> None:
    store.store("a")
    message = store.retrieve()
    assert message is not None
    store.acknowledge(message.id)

    clock.advance(1_000_000)

    assert store.retrieve() is None
    assert store.count()["acknowledged"] == 1


def test_a_released_message_can_be_retrieved_again_at_once(store: SqlStore) -> None:
    store.store("a")
    first = store.retrieve()
    assert first is not None
    store.acknowledge(first, success=False)

    second = store.retrieve()

    assert second is not None
    assert second.id == first.id
    assert second.delivery_count == 2


def test_a_released_message_goes_behind_the_others(store: SqlStore) -> None:
    store.store_many(["bad", "good"])
    bad = store.retrieve()
    assert bad is not None
    store.acknowledge(bad, success=False)

    message = store.retrieve()

    assert message is not None
    assert message.content == "good"


def test_an_unacknowledged_message_returns_after_its_lease_ends(store: SqlStore, other: SqlStore, clock: Clock) -> None:
    store.store("a")
    assert store.retrieve() is not None

    clock.advance(31)

    assert other.retrieve() is not None


def test_a_lost_lease_cannot_acknowledge_and_changes_nothing(store: SqlStore, other: SqlStore, clock: Clock) -> None:
    store.store("a")
    late = store.retrieve()
    assert late is not None
    clock.advance(31)
    current = other.retrieve()
    assert current is not None

    for attempt in (late, late.id):
        with pytest.raises(LeaseLostError, match=late.id):
            store.acknowledge(attempt)

    other.acknowledge(current)


def test_a_lease_that_ran_out_cannot_acknowledge_even_when_nobody_took_over(store: SqlStore, clock: Clock) -> None:
    store.store("a")
    message = store.retrieve()
    assert message is not None
    clock.advance(31)

    with pytest.raises(LeaseLostError):
        store.acknowledge(message)

    assert store.count()["available"] == 1


def test_acknowledging_what_is_not_in_flight_raises(store: SqlStore) -> None:
    message_id = store.store("a")
    with pytest.raises(NotInFlightError):
        store.acknowledge(message_id)
    with pytest.raises(NotInFlightError):
        store.acknowledge("unknown")
    message = store.retrieve()
    assert message is not None
    store.acknowledge(message)
    for finished in (message, message.id):
        with pytest.raises(NotInFlightError):
            store.acknowledge(finished)


def test_an_id_is_stored_once(store: SqlStore) -> None:
    assert store.store("first", id="m1") == "m1"
    assert store.store("again", id="m1") == "m1"

    assert [message.content for message in store.claim(10)] == ["first"]


def test_an_id_that_is_finished_is_not_stored_again(store: SqlStore) -> None:
    store.store("first", id="m1")
    store.settle(store.claim(1))
    store.store("again", id="m1")

    assert store.retrieve() is None


def test_storing_many_is_all_or_none(store: SqlStore) -> None:
    with pytest.raises(UnstorableContentError, match=r"content\.bad"):
        store.store_many(["fine", {"bad": object()}])

    assert sum(store.count().values()) == 0


def test_settling_many_is_all_or_none(store: SqlStore) -> None:
    store.store_many(["a", "b"])
    first, second = store.claim(2)
    store.acknowledge(first)

    with pytest.raises(NotInFlightError, match=first.id):
        store.settle([second, first])

    assert store.count()["leased"] == 1


@pytest.mark.parametrize(
    ("written", "error"),
    [
        ({"id": 5}, "id of a message must be a text"),
        ({"priority": "high"}, "priority"),
        ({"priority": 2**40}, "priority"),
        ({"correlation_id": b"\xff"}, "correlation_id of a message must be a text, got a bytes"),
        ({"scheduled_at": datetime(9999, 1, 1, tzinfo=timezone.utc)}, "2262"),
        ({"time_to_live": timedelta(days=999_999)}, "292 years"),
    ],
)
def test_what_is_written_on_a_message_must_fit(store: SqlStore, written: dict[str, object], error: str) -> None:
    message = Message(**{"id": "m", "content": 1, **written})  # type: ignore[arg-type]

    with pytest.raises(UnstorableContentError, match=error):
        store.store_many([message])

    assert sum(store.count().values()) == 0


def test_an_id_that_is_too_long_is_refused(store: SqlStore) -> None:
    with pytest.raises(UnstorableContentError, match="255"):
        store.store("a", id="x" * 256)


def test_claiming_again_with_the_same_batch_id_returns_the_same_batch(store: SqlStore, other: SqlStore) -> None:
    store.store_many(range(5))
    first = store.claim(3, batch_id="run 1")

    again = other.claim(3, batch_id="run 1")

    assert [message.id for message in again] == [message.id for message in first]
    assert {message.lock_token for message in again} == {message.lock_token for message in first}


def test_a_batch_id_never_claims_new_messages_once_it_is_used(store: SqlStore) -> None:
    store.store_many(range(5))
    store.settle(store.claim(3, batch_id="run 1"))

    assert store.claim(3, batch_id="run 1") == []


def test_a_batch_whose_lease_ran_out_is_found_again_under_a_new_token(store: SqlStore, clock: Clock) -> None:
    store.store_many(range(3))
    first = store.claim(3, batch_id="run 1", lease=10)
    clock.advance(11)

    again = store.claim(3, batch_id="run 1", lease=10)

    assert [message.id for message in again] == [message.id for message in first]
    with pytest.raises(LeaseLostError):
        store.settle(first)
    store.settle(again)


def test_renewing_keeps_a_batch_and_fails_once_it_is_lost(store: SqlStore, other: SqlStore, clock: Clock) -> None:
    store.store("a")
    held = store.lease_batch(1, batch_id="run 1", lease=10)
    assert held is not None
    clock.advance(9)
    store.renew(held, 10)
    clock.advance(9)
    assert other.retrieve() is None
    clock.advance(2)

    with pytest.raises(LeaseLostError, match="run 1"):
        store.renew(held, 10)


def test_forgetting_is_fenced_by_the_lease_and_all_or_none(store: SqlStore, clock: Clock) -> None:
    ids = store.store_many(["a", "b"])
    late = store.lease_batch(2, batch_id="run", lease=30)
    assert late is not None
    clock.advance(31)
    current = store.lease_batch(2, batch_id="run", lease=30)
    assert current is not None

    with pytest.raises(LeaseLostError):
        store.forget_batch(late, ids)
    with pytest.raises(LeaseLostError):
        store.forget_batch(current, [*ids, "somebody else's"])
    assert store.view.present(ids) == set(ids)
    clock.advance(31)
    with pytest.raises(LeaseLostError):
        store.forget_batch(current, ids)

    assert store.view.present(ids) == set(ids)


def test_messages_claimed_by_id_are_those_nobody_else_holds(store: SqlStore, other: SqlStore) -> None:
    ids = store.store_many(["a", "b", "c"])
    other.retrieve()

    held = store.lease_batch(10, batch_id="replay", lease=10, ids=[*ids[:2], "unknown"])

    assert held is not None
    assert [row["id"] for row in store.batch_rows(held)] == [ids[1]]


def test_a_dead_message_claimed_by_its_id_is_leased(store: SqlStore) -> None:
    store.store("a", id="a")
    store.dead_letter(store.claim(1)[0], reason="bad")
    assert store.claim(1) == []

    held = store.lease_batch(1, batch_id="replay", lease=10, ids=["a"])

    assert held is not None
    assert store.count()["leased"] == 1
    store.settle_batch(held, ["a"])
    assert store.count()["acknowledged"] == 1


def test_a_dead_message_copied_elsewhere_is_acknowledged(store: SqlStore) -> None:
    store.store_many([Message("a", "a"), Message("b", "b")])
    store.dead_letter(store.claim(1)[0], reason="bad")

    store.finish_dead(["a", "b"])

    assert {state: number for state, number in store.count().items() if number} == {"available": 1, "acknowledged": 1}


def test_only_what_is_dead_is_finished_as_dead(store: SqlStore) -> None:
    waiting, held = store.store_many(["a", "b"])
    store.claim(1)

    store.finish_dead([waiting, held])

    assert store.view.present([waiting, held]) == {waiting, held}


def test_who_lost_a_batch_neither_renews_nor_blames_nor_reads_its_messages(store: SqlStore, clock: Clock) -> None:
    ids = store.store_many(["a"])
    late = store.lease_batch(1, batch_id="run", lease=30)
    assert late is not None
    clock.advance(31)
    current = store.lease_batch(1, batch_id="run", lease=30)
    assert current is not None

    with pytest.raises(LeaseLostError, match="run"):
        store.renew(late, 600)
    for _ in range(5):
        store.count_crash(late, ids)

    assert next(store.batch_rows(current))["crashes"] == 0
    assert list(store.batch_rows(late)) == []


def test_what_was_released_is_no_part_of_its_batch_any_more(store: SqlStore) -> None:
    store.store("a")
    store.settle(store.claim(1, batch_id="run"), success=False)

    assert not store.knows_batch("run")


def test_the_parts_of_a_batch_are_the_whole_batch(store: SqlStore) -> None:
    ids = store.store_many(range(100))
    held = store.lease_batch(100, batch_id="run 1", lease=10)
    assert held is not None

    ranges = store.scans().batch_ranges(held, 3)
    parts = [[row["id"] for row in store.batch_rows(held, after=a, upto=b, page=7)] for a, b in ranges]

    assert len(parts) == 3
    assert [message_id for part in parts for message_id in part] == ids


def test_what_crashed_its_consumer_too_often_is_kept_aside_with_its_reason(store: SqlStore, clock: Clock) -> None:
    store.store("poison", id="p")
    for delivery in range(3):
        assert store.retrieve() is not None
        clock.advance(34 * 2**delivery)
    store.store("good")

    message = store.retrieve()

    assert message is not None
    assert message.content == "good"
    dead = store.dead_messages()
    assert [(row["id"], row["dead_letter_reason"]) for row in dead] == [("p", "crashed")]
    assert store.count()["dead"] == 1


def test_a_message_that_is_only_released_is_never_kept_aside(store: SqlStore) -> None:
    store.store("a")
    for _ in range(20):
        message = store.retrieve()
        assert message is not None
        store.acknowledge(message, success=False)

    assert store.count()["available"] == 1


def test_an_unreadable_message_is_kept_aside_and_its_neighbours_are_delivered(store: SqlStore, url: str) -> None:
    store.store("before")
    with sa.create_engine(url).begin() as connection:
        connection.execute(sa.text("insert into homing_orders (id, message, encoding) values ('x', '{', 'json')"))
    store.store("after")

    contents = [message.content for message in store.claim(10)]

    assert contents == ["before", "after"]
    assert [(row["id"], row["dead_letter_reason"]) for row in store.dead_messages()] == [("x", "unreadable")]


def test_a_message_inserted_by_plain_sql_is_delivered_as_text(url: str, tmp_path: Path) -> None:
    with open_store(f"{url}?store=orders") as store:
        store.count()  # makes the table
        with sa.create_engine(url).begin() as connection:
            connection.execute(sa.text("insert into homing_orders (id, message) values ('1', 'hello world')"))
        message = store.retrieve()

    assert message is not None
    assert message.content == "hello world"


@pytest.mark.parametrize("ask", [lambda store: store.store("a"), lambda store: store.retrieve()])
def test_a_database_that_cannot_be_opened_is_an_error_of_ours(ask: Any) -> None:
    with (
        open_store("sqlite:////no/such/folder/inbox.db") as store,
        pytest.raises(StoreUnavailableError, match="messages"),
    ):
        ask(store)


def test_an_error_text_never_holds_a_payload(url: str) -> None:
    with open_store(f"{url}?store=orders") as store:
        store.count()
        with sa.create_engine(url).begin() as connection:
            connection.execute(sa.text("drop table homing_orders"))
        with pytest.raises(TableMissingError) as caught:
            store.store("geheim")

    error: BaseException | None = caught.value
    while error is not None:
        assert "geheim" not in str(error)
        error = error.__cause__


def test_all_properties_of_a_message_survive(store: SqlStore) -> None:
    sent = Message(
        "m1", b"\x00\xff", content_type="image/png", headers={"a": [1]}, correlation_id="c", subject="s", to="t",
        reply_to="r", priority=3, session_id="x", partition_key="p",
    )  # fmt: skip
    store.store_many([sent])

    got = store.retrieve()

    assert got is not None
    for name in (
        "id",
        "content",
        "content_type",
        "headers",
        "correlation_id",
        "subject",
        "to",
        "reply_to",
        "priority",
        "session_id",
        "partition_key",
    ):
        assert getattr(got, name) == getattr(sent, name), name


def test_lower_priority_comes_first(store: SqlStore) -> None:
    store.store_many([Message("late", "late", priority=5), Message("soon", "soon", priority=1)])

    assert [message.content for message in store.claim(2)] == ["soon", "late"]


_KILLED_BEFORE_ACKNOWLEDGE = """
import os, signal, sys
from homing import open_store
store = open_store(sys.argv[1])
assert store.retrieve() is not None
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_consumer_killed_between_retrieve_and_acknowledge_loses_nothing(url: str) -> None:
    full_url = f"{url}?store=orders&ack_wait=0.2"
    with open_store(full_url) as store:
        store.store("a")
        killed = subprocess.run([sys.executable, "-c", _KILLED_BEFORE_ACKNOWLEDGE, full_url], timeout=60, check=False)
        assert killed.returncode == -signal.SIGKILL
        message = None
        while message is None:
            message = store.retrieve()

    assert message.content == "a"
    assert message.delivery_count == 2


_WORKER = """
import sys
from homing import open_store
with open_store(sys.argv[1]) as store:
    for message in iter(store.retrieve, None):
        store.acknowledge(message)
        print(message.content)
"""


def test_many_processes_share_a_store_out_and_each_message_is_delivered_once(url: str) -> None:
    full_url = f"{url}?store=orders&ack_wait=60"
    with open_store(full_url) as store:
        store.store_many([str(n) for n in range(200)])
    workers = [
        subprocess.Popen([sys.executable, "-c", _WORKER, full_url], stdout=subprocess.PIPE, text=True, env=os.environ)
        for _ in range(4)
    ]
    seen = [line for worker in workers for line in worker.communicate(timeout=120)[0].split()]

    assert sorted(seen, key=int) == [str(n) for n in range(200)]
    assert all(worker.returncode == 0 for worker in workers)


def test_expiring_keeps_aside_what_outlived_its_time_and_nobody_holds(store: SqlStore, clock: Clock) -> None:
    for name in ("held", "old"):
        store.store(Message(name, name, time_to_live=timedelta(seconds=5)))
    store.store("for ever", id="for ever")
    held = store.claim(1, lease=60)
    clock.advance(6)

    assert store.expire() == 1
    assert store.expire() == 0

    assert [(dead.id, dead.dead_letter_reason) for dead in store.browse(state="dead")] == [("old", "expired")]
    store.settle(held)
    assert [message.id for message in store.claim(5)] == ["for ever"]


def test_time_to_live_counts_from_the_due_time(store: SqlStore, clock: Clock) -> None:
    store.store(Message("m1", "a", scheduled_at=clock.after(60), time_to_live=timedelta(seconds=5)))
    clock.advance(64)
    assert store.expire() == 0
    message = store.retrieve()
    assert message is not None
    store.acknowledge(message, success=False)
    clock.advance(2)

    assert store.retrieve() is None
    assert [(dead.id, dead.dead_letter_reason) for dead in store.browse(state="dead")] == [("m1", "expired")]


@pytest.mark.parametrize("state", ["acknowledged", "dead"])
def test_purging_goes_on_after_the_first_chunk(store: SqlStore, state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "_PURGE_CHUNK", 2)
    store.store_many(range(7))
    for message in store.claim(7, lease=60):
        if message.content == 3:
            store.acknowledge(message, success=False)
        elif state == "dead":
            store.dead_letter(message, reason="bad")
        else:
            store.acknowledge(message)

    assert store.purge(0, state=state) == 6

    assert [message.content for message in store.browse()] == [3]


def test_sqlite_keeps_a_log_and_waits_for_the_disk_on_every_connection(store: SqlStore) -> None:
    def settings(connection: sa.Connection) -> tuple[str, int]:
        names = ("journal_mode", "synchronous")
        mode, synchronous = (connection.exec_driver_sql(f"PRAGMA {name}").scalar_one() for name in names)
        return mode, synchronous

    def two_at_once(connection: sa.Connection) -> set[tuple[str, int]]:
        return {settings(connection), store._database.read(settings)}

    assert store._database.write(two_at_once) == {("wal", SYNCHRONOUS_FULL)}


def test_sqlite_waits_for_the_disk_even_where_its_library_is_built_not_to(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "inbox.db")) as connection:
        connection.execute("PRAGMA synchronous=OFF")

        engine._set_up_sqlite(connection, None)

        assert connection.execute("PRAGMA synchronous").fetchone() == (SYNCHRONOUS_FULL,)
