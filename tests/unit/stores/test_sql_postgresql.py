"""What the SQL store does on PostgreSQL alone: less is logged, nobody waits while the server is at work, and ids
are found whatever the server believes of the table."""

from __future__ import annotations

import re
import secrets
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from homing import Message
from homing.errors import StoreError, StoreUnavailableError, UnstorableContentError
from homing.stores.sql import SqlStore
from tests.servers import missing
from tests.unit.stores.databases import execute, opened

pytestmark = pytest.mark.services


@pytest.fixture
def database(postgresql: Any) -> str:
    return str(postgresql.empty_database())


@pytest.fixture
def store(database: str) -> Iterator[SqlStore]:
    with opened(database) as store:
        yield store


@contextmanager
def at_every_update(engine: sa.Engine, do: str) -> Iterator[None]:
    """Has the server do this whenever a message is changed."""
    body = f"create function harm() returns trigger language plpgsql as $$ begin {do} return new; end $$"
    execute(engine, body)
    execute(engine, "create trigger harm before update on homing_orders for each row execute function harm()")
    try:
        yield
    finally:
        execute(engine, "drop function harm cascade")


def logged(engine: sa.Engine) -> int:
    """How many bytes the server has written to its log so far."""
    with engine.connect() as connection:
        return int(connection.execute(sa.text("select pg_current_wal_insert_lsn() - '0/0'")).scalar_one())


def test_claiming_and_settling_log_no_content_again(store: SqlStore, engine: sa.Engine) -> None:
    execute(engine, "checkpoint")  # after one, a page is logged whole when it is changed for the first time
    store.store_many([secrets.token_hex(512) for _ in range(300)])
    before = logged(engine)

    claimed = store.claim(300)
    store.settle(claimed)

    assert len(claimed) == 300
    # The contents again, twice, would be 2,048 bytes more for each. The server's housekeeping may log something, too.
    assert logged(engine) - before < 300 * 1_500


def test_a_lease_that_cannot_be_written_is_no_lease(store: SqlStore, engine: sa.Engine) -> None:
    store.store_many(range(100))

    with (
        at_every_update(engine, "raise exception 'the disk is full';"),
        pytest.raises(StoreError, match="SQLSTATE P0001"),
    ):
        store.claim(100)

    assert store.count()["available"] == 100
    claimed = store.claim(100)
    assert [message.delivery_count for message in claimed] == [1] * 100
    store.settle(claimed)


def test_a_connection_lost_while_a_lease_is_written_loses_no_message(store: SqlStore, engine: sa.Engine) -> None:
    store.store_many(range(100))

    with (
        at_every_update(engine, "perform pg_terminate_backend(pg_backend_pid());"),
        pytest.raises(StoreUnavailableError),
    ):
        store.claim(100)

    assert store.count()["available"] == 100
    assert len(store.claim(100)) == 100


def test_a_connection_lost_once_while_a_lease_is_written_is_replaced(store: SqlStore, engine: sa.Engine) -> None:
    store.store_many(range(100))
    execute(engine, "create sequence deaths")

    with at_every_update(
        engine, "if nextval('deaths') = 1 then perform pg_terminate_backend(pg_backend_pid()); end if;"
    ):
        claimed = store.claim(100)

    assert [message.content for message in claimed] == list(range(100))
    store.settle(claimed)


class TaskEnded(BaseException):
    """As Airflow ends a task that takes too long."""


def test_whoever_ends_a_claim_while_its_lease_is_written_ends_it(store: SqlStore, engine: sa.Engine) -> None:
    def end(*_: Any) -> None:
        raise TaskEnded

    store.store_many(range(3))
    before = signal.signal(signal.SIGALRM, end)
    try:
        with at_every_update(engine, "perform pg_sleep(0.5);"):
            signal.setitimer(signal.ITIMER_REAL, 0.5)
            with pytest.raises(TaskEnded):
                store.claim(3)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)

    assert store.count()["available"] == 3
    assert len(store.claim(3)) == 3


def test_contents_that_cannot_be_read_are_found_while_the_lease_is_written(store: SqlStore, engine: sa.Engine) -> None:
    store.store_many([Message(str(number), {"n": number}) for number in range(10)])
    execute(engine, "update homing_orders set message = '{' where id = '4'")

    claimed = store.claim(10)

    assert [message.content["n"] for message in claimed] == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    assert (store.count()["leased"], store.count()["dead"]) == (9, 1)
    store.settle(claimed)


def test_a_bad_content_behind_many_good_ones_stores_none_of_them_and_is_not_in_the_servers_log(
    store: SqlStore, postgresql: Any
) -> None:
    with pytest.raises(UnstorableContentError, match=r"content\.secret_of_mine"):
        store.store_many([*({"n": number} for number in range(500)), {"secret_of_mine": object()}])

    assert sum(store.count().values()) == 0
    log = (postgresql.folder / "log").read_text()
    assert "a message cannot be stored" in log
    assert "secret_of_mine" not in log
    store.store_many([{"n": number} for number in range(500)])
    assert [message.content["n"] for message in store.claim(500)] == list(range(500))


class Plans:
    """What the server says of the statements it has run in one database since it was asked last."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._read = len(self._text())

    def indexes(self) -> set[str]:
        """The indexes of messages that were used."""
        text = self._text()[self._read :]
        self._read += len(text)
        return set(re.findall(r"Scan(?: Backward)? using homing_orders_(\w+) on homing_orders", text))

    def _text(self) -> str:
        return self._log.read_text(errors="replace")


@pytest.fixture
def plans(database: str, engine: sa.Engine, postgresql: Any) -> Plans:
    try:
        execute(engine, "load 'auto_explain'")
    except sa.exc.DBAPIError:
        missing("postgresql's auto_explain")
    name = database.rpartition("/")[2]
    execute(engine, f"alter database {name} set session_preload_libraries = auto_explain")
    execute(engine, f"alter database {name} set auto_explain.log_min_duration = 0")
    engine.dispose()
    return Plans(postgresql.folder / "log")


def emptied_and_vacuumed(store: SqlStore, engine: sa.Engine) -> None:
    """Makes the server take the table for empty, as it does of one that was so when autovacuum came."""
    store.store_many(range(2000))
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(sa.text("delete from homing_orders"))
        connection.execute(sa.text("vacuum (analyze, truncate off) homing_orders"))


def _settle(store: SqlStore, held: list[Message]) -> None:
    store.settle(held)


def _release(store: SqlStore, held: list[Message]) -> None:
    store.settle(held, success=False)


def _renew(store: SqlStore, held: list[Message]) -> None:
    store.renew(held, 60)


def _acknowledge(store: SqlStore, held: list[Message]) -> None:
    store.acknowledge(held[0].id)


def _reschedule(store: SqlStore, held: list[Message]) -> None:
    store.settle(held, success=False)
    store.reschedule([message.id for message in held], datetime(2100, 1, 1, tzinfo=timezone.utc))


def _cancel(store: SqlStore, held: list[Message]) -> None:
    store.settle(held[1:], success=False)
    store.dead_letter(held[0], reason="x")
    assert not store.cancel(held[1].id)


def _finish_dead(store: SqlStore, held: list[Message]) -> None:
    store.dead_letter(held[0], reason="x")
    store.finish_dead([held[0].id])


def _batches_of(store: SqlStore, held: list[Message]) -> None:
    assert store.view.batches_of([message.id for message in held]) == {}


@pytest.mark.parametrize("acknowledged", ["kept", "removed"])
@pytest.mark.parametrize(
    "verb", [_settle, _release, _renew, _acknowledge, _reschedule, _cancel, _finish_dead, _batches_of]
)
def test_messages_are_found_by_their_ids_where_the_server_takes_the_table_for_empty(
    database: str, engine: sa.Engine, plans: Plans, verb: Callable[[SqlStore, list[Message]], None], acknowledged: str
) -> None:
    with opened(database, acknowledged=acknowledged) as store:
        emptied_and_vacuumed(store, engine)
        store.store_many(range(2000))
        # The driver prepares a statement when it has run five times, and after five more the server may plan it for any
        # parameters.
        for _ in range(12):
            held = store.claim(20, lease=60)
            assert len(held) == 20
            assert "_due" in plans.indexes()
            verb(store, held)
            # Through what is due it would come upon all that wait, for each of those it looks for.
            assert plans.indexes() in ({"pkey"}, {"id_key"}, {"pkey", "id_key"})
