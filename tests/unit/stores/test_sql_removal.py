"""Removing messages, whatever their state, on each database: what somebody holds stays."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from datetime import datetime, timezone

import pytest
import sqlalchemy as sa

from homing.errors import StillHeldError, StoreUnavailableError
from homing.stores.sql import SqlStore
from homing.stores.sql.scrub import scrub
from tests.servers import PostgreSQL
from tests.unit.stores.databases import execute, opened


@pytest.fixture
def store(database: str) -> Iterator[SqlStore]:
    with opened(database) as store:
        yield store


def numbered(store: SqlStore) -> dict[int, str]:
    return {ref.sequence: ref.id for _, _, ref in store.view.states()}


def test_what_waits_is_finished_or_is_dead_goes_and_its_neighbours_stay(store: SqlStore) -> None:
    for number, message_id in enumerate(["finished", "dead", "waiting", "neighbour"]):
        store.store(number, id=message_id)
    finished, dead = store.claim(2)
    store.acknowledge(finished)
    store.dead_letter(dead, reason="poison")
    mine = {number: one for number, one in numbered(store).items() if one != "neighbour"}

    assert store.erasure.remove(mine) == 3

    assert list(numbered(store).values()) == ["neighbour"]
    assert [message.id for message in store.claim(10)] == ["neighbour"]


def test_what_is_held_stays_with_all_that_is_asked_for_and_the_refusal_says_until_when(store: SqlStore) -> None:
    store.store(1, id="held")
    store.store(2, id="free")
    store.claim(1, lease=60)

    with pytest.raises(StillHeldError, match="message held stays in store 'orders'") as refused:
        store.erasure.remove(numbered(store))

    assert sorted(numbered(store).values()) == ["free", "held"]
    (until,) = re.findall(r"until (\S+ \S+) UTC", str(refused.value))
    seconds = datetime.fromisoformat(until).replace(tzinfo=timezone.utc) - datetime.now(timezone.utc)
    assert 30 < seconds.total_seconds() < 90
    with pytest.raises(StillHeldError):
        store.erasure.require_free(numbered(store))


def test_who_claims_it_at_the_same_time_keeps_it(store: SqlStore, engine: sa.Engine) -> None:
    store.store(1, id="x")
    (number,) = numbered(store)
    with ThreadPoolExecutor() as pool:
        with engine.connect() as claimer:
            claimer.execute(sa.text("update homing_orders set lock_token = 'claimed', time_next = 9000000000000000000"))
            removal = pool.submit(store.erasure.remove, {number: "x"})
            wait([removal], timeout=1)  # it waits for whoever has the row
            claimer.commit()
        with pytest.raises(StillHeldError):
            removal.result(timeout=60)

    assert numbered(store) == {number: "x"}


def test_what_somebody_held_until_his_lease_ran_out_goes(store: SqlStore) -> None:
    store.store(1, id="late")
    store.claim(1, lease=1e-3)
    store.wait(5)  # until the lease has run out

    store.erasure.require_free(numbered(store))
    assert store.erasure.remove(numbered(store)) == 1


def test_a_number_under_which_another_message_lies_is_not_taken_for_it(store: SqlStore) -> None:
    store.store(1, id="another")
    (number,) = numbered(store)

    assert store.erasure.remove({number: "mine"}) == 0
    assert numbered(store) == {number: "another"}


@pytest.mark.services
def test_what_is_archived_goes_too(postgresql: PostgreSQL) -> None:
    with opened(postgresql.empty_database(), acknowledged="archived") as store:
        store.store(1, id="x")
        store.settle(store.claim(1))

        assert store.erasure.remove(numbered(store)) == 1

        assert numbered(store) == {}
        assert store.erasure.tables() == ["homing_orders", "homing_orders__acked"]


@pytest.mark.services
def test_who_may_not_vacuum_is_told_what_the_owner_is_to_do(postgresql: PostgreSQL) -> None:
    url = postgresql.empty_database()
    with opened(url) as owner:
        owner.store(1)
    engine = sa.create_engine(url)
    name = f"clerk_{sa.make_url(url).database}"
    execute(engine, f"create role {name} login password 'p'")
    execute(engine, f"grant select, insert, update, delete on all tables in schema public to {name}")
    engine.dispose()
    clerk = sa.make_url(url).set(username=name, password="p")  # noqa: S106 - of a role that the test makes

    with opened(url) as owner, opened(clerk.render_as_string(hide_password=False)) as store:
        assert "rewrites them" in str(owner.erasure.scrub(owner.erasure.tables()))
        assert "have their owner VACUUM (FULL) homing_orders" in str(store.erasure.scrub(store.erasure.tables()))


def test_a_sqlite_file_that_others_read_is_said_not_to_be_clean(url: str) -> None:
    engine = sa.create_engine(url)
    with opened(url) as store:
        store.store("x")
        with engine.connect() as reader:
            reader.exec_driver_sql("begin")
            reader.exec_driver_sql("select * from homing_orders").all()
            with pytest.raises(StoreUnavailableError, match="others read"):
                scrub(store._database, [], patience=0.2)
        assert store.erasure.scrub(store.erasure.tables()) is None
    engine.dispose()
