"""Acknowledged messages in an archive of days, on PostgreSQL."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy as sa

from homing import open_store
from homing.errors import ConfigurationError, LeaseLostError
from homing.stores.sql import SqlStore, archive
from tests.servers import PostgreSQL
from tests.unit.stores.conftest import Clock
from tests.unit.stores.databases import opened

DAY = 86_400

pytestmark = pytest.mark.services


@pytest.fixture
def url(postgresql: PostgreSQL) -> str:
    return postgresql.empty_database()


@pytest.fixture
def engine(url: str) -> Iterator[sa.Engine]:
    engine = sa.create_engine(url)
    yield engine
    engine.dispose()


@pytest.fixture
def store(url: str, clock: Clock) -> Iterator[SqlStore]:
    with SqlStore(sa.make_url(url), "orders", clock=clock, acknowledged="archived") as store:
        store._database._measures = False  # the clock is the test's
        yield store


def days(engine: sa.Engine) -> list[str]:
    with engine.connect() as connection:
        names = connection.execute(
            sa.text("select relname from pg_class where relname ~ '__acked_[0-9]{8}$'")
        ).scalars()
        return sorted(name[-8:] for name in names)


def finish(store: SqlStore, *contents: str) -> None:
    store.store_many(contents)
    store.settle(store.claim(100, lease=60))


def test_an_acknowledged_message_is_archived_and_counted(store: SqlStore, engine: sa.Engine) -> None:
    finish(store, "a", "b")
    store.store("c")

    assert store.count() == {**dict.fromkeys(store.count(), 0), "acknowledged": 2, "available": 1}
    assert [message.content for message in store.browse(state="acknowledged")] == ["a", "b"]
    assert [message.content for message in store.browse()] == ["a", "b", "c"]
    assert [state for _, state, _ in store.view.states()] == ["acknowledged", "acknowledged", "available"]
    with engine.connect() as connection:
        assert connection.execute(sa.text("select count(*) from homing_orders")).scalar() == 1
        where = "where time_acked is not null and time_next is null and lock_token is null"
        assert connection.execute(sa.text(f"select count(*) from homing_orders__acked {where}")).scalar() == 2  # noqa: S608


def test_a_lease_that_was_lost_archives_nothing(store: SqlStore, clock: Clock) -> None:
    store.store_many(["a", "b"])
    late = store.claim(2, lease=10)
    clock.advance(11)

    with pytest.raises(LeaseLostError):
        store.settle(late)
    assert store.count()["acknowledged"] == 0
    assert len(store.claim(2)) == 2


def test_an_archived_batch_is_still_known(store: SqlStore) -> None:
    store.store_many(["a", "b", "c"])
    store.settle(store.claim(2, batch_id="run-1", lease=60))

    assert store.knows_batch("run-1")
    assert store.claim(2, batch_id="run-1", lease=60) == []
    assert len(store.claim(2, batch_id="run-2", lease=60)) == 1


def test_purging_drops_the_days_that_are_over(store: SqlStore, engine: sa.Engine, clock: Clock) -> None:
    for content in ("first", "second", "third"):
        finish(store, content)
        clock.advance(DAY)
    finish(store, "today")
    made = days(engine)

    assert len(made) == 4
    assert store.purge(1.5 * DAY) == 2
    assert [message.content for message in store.browse()] == ["third", "today"]
    assert set(days(engine)) < set(made)
    assert store.purge(0) == 2
    assert store.count()["acknowledged"] == 0
    assert made[-1] in days(engine)
    finish(store, "goes on")
    assert store.count()["acknowledged"] == 1


def test_purging_a_day_that_is_not_over_goes_on_after_the_first_chunk(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "_PURGE_CHUNK", 2)
    finish(store, "a", "b", "c", "d", "e")

    assert store.purge(0) == 5

    assert store.count()["acknowledged"] == 0


def test_a_day_in_use_is_dropped_another_time(store: SqlStore, engine: sa.Engine, clock: Clock) -> None:
    finish(store, "old")
    clock.advance(3 * DAY)
    with engine.begin() as reader:
        reader.execute(sa.text("select * from homing_orders__acked")).all()

        assert store.purge(DAY) == 0

    assert store.purge(DAY) == 1


def test_acknowledging_in_the_callers_transaction_that_is_undone_archives_nothing(
    store: SqlStore, engine: sa.Engine
) -> None:
    store.store("a")
    (message,) = store.claim(1, lease=60)
    with engine.connect() as connection:
        store.acknowledge(message, transaction=connection)
        connection.rollback()
    assert store.count()["leased"] == 1

    with engine.begin() as connection:
        store.acknowledge(message, transaction=connection)
    assert store.count()["acknowledged"] == 1


def test_consumers_that_archive_at_once_all_make_the_first_day(url: str) -> None:
    with opened(url) as producer:
        producer.store_many(range(40))

    def consume(_: int) -> None:
        with opened(url, acknowledged="archived") as store:
            while claimed := store.claim(2, lease=60):
                store.settle(claimed)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(consume, range(4)))

    with opened(url) as store:
        assert store.count()["acknowledged"] == 40
        assert sorted(message.content for message in store.browse()) == list(range(40))


def test_a_consumer_killed_while_it_archives_leaves_each_message_once(url: str) -> None:
    with opened(url) as store:
        store.store_many(range(2000))
    consumer = (
        "import sys; from homing import open_store\n"
        "store = open_store(sys.argv[1])\n"
        "while claimed := store.claim(20, lease=1):\n"
        "    store.settle(claimed); print(flush=True)\n"
    )
    target = f"{url}?store=orders&acknowledged=archived"
    process = subprocess.Popen([sys.executable, "-c", consumer, target], stdout=subprocess.PIPE)
    assert process.stdout is not None
    for _ in range(5):
        process.stdout.readline()
    process.kill()
    process.wait()

    with opened(url) as store:
        ids = [message_id for message_id, _, _ in store.view.states()]
        assert len(ids) == len(set(ids)) == 2000
        assert store.count()["acknowledged"] >= 100


def test_an_archive_is_made_by_the_first_who_needs_it_and_seen_by_all(url: str) -> None:
    with opened(url) as other:
        finish(other, "kept")
        assert other.count()["acknowledged"] == 1

        with opened(url, acknowledged="archived") as store:
            finish(store, "archived")

        assert [message.content for message in other.browse(state="acknowledged")] == ["kept", "archived"]
        assert other.purge(0) == 2


def test_only_postgresql_archives(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="only PostgreSQL"):
        open_store(f"sqlite:///{tmp_path}/inbox.db?acknowledged=archived")
    with open_store(f"sqlite:///{tmp_path}/inbox.db") as store:
        assert isinstance(store, SqlStore)
        with pytest.raises(ConfigurationError, match="only PostgreSQL"):
            store.configure(acknowledged="archived")


def test_who_knows_more_columns_than_the_archive_sees_what_is_in_it(url: str) -> None:
    with opened(url, acknowledged="archived") as store:
        store.store("a", id="a")
        store.settle(store.claim(1))

    with opened(url, columns="region") as store:
        assert store.count()["acknowledged"] == 1
        assert [message.id for message in store.browse()] == ["a"]
        assert store.purgeable(0) == 1
