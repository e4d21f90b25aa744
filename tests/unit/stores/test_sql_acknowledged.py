"""What becomes of an acknowledged message: kept, or removed at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from homing import open_store
from homing.errors import ConfigurationError, LeaseLostError, NotInFlightError
from homing.stores.sql import SqlStore
from tests.unit.stores.conftest import Clock


@pytest.fixture
def removing(url: str, clock: Clock) -> Iterator[SqlStore]:
    with SqlStore(sa.make_url(url), "orders", clock=clock, acknowledged="removed") as store:
        yield store


def test_an_acknowledged_message_is_removed_and_its_id_forgotten(removing: SqlStore) -> None:
    removing.store("a", id="1")
    message = removing.retrieve()
    assert message is not None
    removing.acknowledge(message)

    assert sum(removing.count().values()) == 0
    with pytest.raises(NotInFlightError):
        removing.acknowledge(message)
    removing.store("b", id="1")
    assert [message.content for message in removing.claim(10)] == ["b"]


def test_what_is_released_is_not_removed(removing: SqlStore) -> None:
    removing.store_many(["good", "bad"])
    removing.settle(removing.claim(2), [True, False])

    assert [message.content for message in removing.claim(2)] == ["bad"]


def test_a_lease_that_was_lost_removes_nothing(removing: SqlStore, clock: Clock) -> None:
    removing.store_many(["late", "late too"])
    late = removing.claim(2, lease=10)
    clock.advance(11)
    again = removing.claim(1, lease=10)

    with pytest.raises(LeaseLostError):
        removing.settle(late)
    assert sum(removing.count().values()) == 2
    with pytest.raises(LeaseLostError):
        removing.settle([*again, late[1]])
    assert sum(removing.count().values()) == 2
    removing.settle(again)
    assert sum(removing.count().values()) == 1


def test_a_batch_is_kept_because_it_may_be_asked_for_again(removing: SqlStore) -> None:
    removing.store_many(["a", "b", "c"])
    batch, single = removing.claim(2, batch_id="run-1", lease=60), removing.claim(1)
    removing.settle([*batch, *single])

    assert removing.count()["acknowledged"] == 2
    assert removing.knows_batch("run-1")
    removing.store("d")
    assert removing.claim(2, batch_id="run-1", lease=60) == []


def test_a_window_in_which_ids_are_known_keeps_their_messages(url: str, clock: Clock) -> None:
    with SqlStore(sa.make_url(url), "orders", clock=clock, acknowledged="removed", duplicate_window=60) as store:
        store.store("a", id="1")
        store.settle(store.claim(1))

        store.store("a", id="1")
        assert store.claim(1) == []


def test_a_removal_in_the_callers_transaction_is_undone_with_it(removing: SqlStore, url: str) -> None:
    removing.store("a")
    message = removing.retrieve()
    assert message is not None
    engine = sa.create_engine(url)
    with engine.connect() as connection:
        removing.acknowledge(message, transaction=connection)
        connection.rollback()
    engine.dispose()

    assert removing.count()["leased"] == 1
    removing.acknowledge(message)
    assert sum(removing.count().values()) == 0


def test_a_running_consumer_learns_that_messages_are_removed(tmp_path: Path) -> None:
    with open_store(f"sqlite:///{tmp_path}/inbox.db") as store:
        assert isinstance(store, SqlStore)
        store.store_many(["a", "b"])
        store.settle(store.claim(1))
        assert store.configure(acknowledged="removed").acknowledged == "removed"
        store.settle(store.claim(1))

        assert store.count()["acknowledged"] == 1


def test_another_word_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="one of kept, archived, removed, got 'burnt'"):
        open_store(f"sqlite:///{tmp_path}/inbox.db?acknowledged=burnt")
