"""A SQL store, and its ledger, in processes that were forked after it was used."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
import sqlalchemy as sa

from homing.errors import NotInFlightError, StoreError
from homing.invocation.fork_safety import hang_up
from homing.ledger import DELIVERED, Entry
from homing.message import MessageRef
from homing.stores.sql import SqlStore
from homing.stores.sql.engine import descriptor_of
from tests.forked import fork, held_by_a_thread, went_well
from tests.unit.stores.databases import opened

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

EACH = 150


def stored(store: SqlStore, who: str, count: int = EACH) -> set[str]:
    return {store.store(number, id=f"{who}-{number}") for number in range(count)}


def ids(who: str, count: int = EACH) -> set[str]:
    return {f"{who}-{number}" for number in range(count)}


def test_two_children_and_their_parent_store_at_the_same_time_and_lose_nothing(database: str) -> None:
    with opened(database) as store:
        stored(store, "before", 1)  # so that there is a connection to be inherited
        children = [fork(lambda who=who: stored(store, who)) for who in ("first", "second")]  # type: ignore[misc]
        stored(store, "parent")
        assert went_well(*children)
        expected = ids("before", 1) | ids("first") | ids("second") | ids("parent")
        assert {message.id for message in store.browse(1000)} == expected


def test_two_children_and_their_parent_share_the_messages_out(database: str) -> None:
    def take(store: SqlStore) -> bool:
        while message := store.retrieve():
            store.acknowledge(message)
        return store.count()["dead"] == 0

    with opened(database) as store:
        stored(store, "one")
        children = [fork(lambda: take(store)) for _ in range(2)]
        assert take(store)
        assert went_well(*children)
        assert store.count() == {**dict.fromkeys(store.count(), 0), "acknowledged": EACH}
        assert {message.delivery_count for message in store.browse(EACH)} == {1}


def test_a_message_leased_in_the_parent_may_be_acknowledged_in_the_child_once(database: str) -> None:
    with opened(database) as store:
        store.store("a", id="1")
        store.store("b", id="2")
        message = store.retrieve()
        assert message is not None
        assert store.retrieve() is not None
        assert went_well(fork(lambda: store.acknowledge(message)), fork(lambda: store.acknowledge("2")))
        assert store.count()["acknowledged"] == 2
        with pytest.raises(NotInFlightError):
            store.acknowledge(message)


def test_a_ledger_is_written_by_the_child_and_by_the_parent(database: str) -> None:
    with opened(database) as store:
        ledger = store.ledger()
        store.store("a", id="1")
        fence = ledger.open_step("run", "step", 60)
        child = fork(lambda: ledger.record(fence, [Entry(MessageRef("", 1, "1"), "crm", DELIVERED, batch_id="run")]))
        ledger.record(fence, [Entry(MessageRef("", 1, "1"), "lake", DELIVERED, batch_id="run")])
        assert went_well(child)
        assert set(next(iter(ledger.known(["1"]).values()))) == {"crm", "lake"}


def test_a_child_goes_on_when_its_parent_closes_the_store(database: str) -> None:
    """With SQLite's locks inherited, the child would write into a log that the parent deletes as it closes."""
    begun, closed = os.pipe(), os.pipe()
    with opened(database) as store:
        stored(store, "before", 1)

        def use() -> None:
            stored(store, "early", 10)
            os.write(begun[1], b"x")
            os.read(closed[0], 1)
            stored(store, "late", 10)

        child = fork(use)
        os.read(begun[0], 1)
        stored(store, "parent", 10)
        store.close()
        os.write(closed[1], b"x")
        assert went_well(child)
    with opened(database) as store:
        found = {message.id for message in store.browse(1000)}
    assert found == ids("before", 1) | ids("early", 10) | ids("late", 10) | ids("parent", 10)


def test_a_lock_that_a_thread_held_does_not_hang_the_child(database: str) -> None:
    with opened(database) as store:
        store.count()
        with held_by_a_thread(store._database._tables._lock), held_by_a_thread(store._wake_up._lock):
            store.ledger()  # has tables made, under the lock, with the next call
            child = fork(lambda: store.ledger().known(["1"]) == {} and store.store("a") and store.wait(5))
        assert went_well(child)


def test_a_child_of_a_process_with_many_connections_at_work_loses_nothing(database: str) -> None:
    """Threads are in the middle of transactions whenever the process forks."""
    with opened(database) as store:
        store.count()
        threads = [threading.Thread(target=stored, args=(store, f"thread{n}", 60)) for n in range(3)]
        for thread in threads:
            thread.start()
        children = [fork(lambda who=who: stored(store, who, 30)) for who in ("a", "b", "c", "d")]  # type: ignore[misc]
        for thread in threads:
            thread.join(120)
        assert went_well(*children)
        everybody = [ids(f"thread{n}", 60) for n in range(3)] + [ids(who, 30) for who in ("a", "b", "c", "d")]
        assert {message.id for message in store.browse(1000)} == set().union(*everybody)


def test_a_process_forked_in_a_transaction_of_sqlite_is_told_that_it_cannot_use_the_store(tmp_path: Path) -> None:
    with opened(f"sqlite:///{tmp_path}/inbox.db") as store:
        store.count()
        caught: list[bool] = []

        def refused() -> bool:
            with pytest.raises(StoreError, match="in the middle of one of its transactions"):
                store.store("a")
            return True

        def work(connection: sa.Connection) -> None:
            caught.append(went_well(fork(refused)))

        store._database.write(work)
        assert caught == [True]
        assert went_well(fork(lambda: store.store("a")))  # outside of one it works
        assert store.count()["available"] == 1


@pytest.mark.services
@pytest.mark.parametrize("server", ["postgresql", "mariadb"])
def test_a_child_does_not_keep_its_parents_connections_alive(server: str, request: pytest.FixtureRequest) -> None:
    """The server must notice when the parent dies, and give up its locks, though the child lives."""
    database = request.getfixturevalue(server).empty_database()
    leave = os.pipe()
    with opened(database) as store:
        store.count()
        mine = store._database._engine.connect()
        me, table = ("pg_backend_pid()", "pg_stat_activity where pid") if server == "postgresql" else (
            "connection_id()", "information_schema.processlist where id"
        )  # fmt: skip
        who = mine.exec_driver_sql(f"select {me}").scalar()
        child = fork(lambda: os.read(leave[0], 1) == b"x")
        descriptor = descriptor_of(mine.connection.dbapi_connection)
        hang_up(descriptor)  # as when the parent dies: nobody says farewell
        engine = sa.create_engine(database, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            for _ in range(600):
                left = connection.exec_driver_sql(f"select count(*) from {table} = {who}").scalar()  # noqa: S608
                if not left:
                    break
                threading.Event().wait(0.05)
        engine.dispose()
        os.write(leave[1], b"x")
        assert went_well(child)
        assert left == 0
        mine.invalidate()
        mine.close()
