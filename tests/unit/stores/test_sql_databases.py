"""What the SQL store does on all three databases: Vitess's recipes, transactions, its schema, its properties."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict
from datetime import datetime, timedelta, timezone
from functools import partial
from itertools import takewhile
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from homing import Message, RetryPolicy
from homing.errors import ConfigurationError, LeaseLostError, NotInFlightError, StoreError
from homing.invocation.rate_limit import RateLimiter
from homing.stores.sql import SqlStore, open_sql_store, properties
from homing.testing.conformance.waiting import take
from tests.clocks import Clock
from tests.unit.stores.databases import execute, opened, timed

SECOND = 1_000_000_000


@pytest.fixture
def store(database: str) -> Iterator[SqlStore]:
    with opened(database) as store:
        yield store


# -- Vitess's recipes -------------------------------------------------------------------------------------------


def test_plain_sql_with_only_id_and_message_stores_a_message(store: SqlStore, engine: sa.Engine) -> None:
    store.count()  # makes the table
    execute(engine, "insert into homing_orders (id, message) values ('1', 'hello world')")

    assert store.has_due()
    message = store.retrieve()

    assert message is not None
    assert (message.id, message.content, message.delivery_count) == ("1", "hello world", 1)
    store.acknowledge(message)


def test_plain_sql_with_a_future_time_scheduled_is_delivered_when_it_is_due(
    database: str, engine: sa.Engine, clock: Clock
) -> None:
    with timed(database, clock) as store:
        future = store._database.now() + 600 * SECOND
        statement = "insert into homing_orders (id, message, time_scheduled) values ('1', 'hello world', :future)"
        execute(engine, statement, future=future)

        assert store.count()["scheduled"] == 1
        assert not store.has_due()
        assert store.retrieve() is None
        assert store.count()["scheduled"] == 1
        clock.advance(599.9)
        assert not store.has_due()
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(store.wait, 60)
            clock.advance(0.1)
            assert waiting.result()
        assert store.retrieve() is not None


def test_a_future_message_by_plain_sql_hides_nothing_that_is_due(store: SqlStore, engine: sa.Engine) -> None:
    store.store("now")
    statement = "insert into homing_orders (id, message, time_scheduled) values ('1', 'later', :future)"
    execute(engine, statement, future=time.time_ns() + 60 * SECOND)

    assert store.has_due()
    assert [message.content for message in store.claim(10)] == ["now"]


def test_plain_sql_acknowledges(store: SqlStore, engine: sa.Engine) -> None:
    store.store("a", id="1")
    message = store.retrieve()
    assert message is not None
    statement = "update homing_orders set time_acked = :now, time_next = null where id in ('1') and time_acked is null"
    execute(engine, statement, now=time.time_ns())

    assert store.count()["acknowledged"] == 1
    with pytest.raises(NotInFlightError):
        store.acknowledge(message)


def test_plain_sql_reschedules(store: SqlStore, engine: sa.Engine) -> None:
    store.store("a", id="1", scheduled_at=datetime(2100, 1, 1, tzinfo=timezone.utc))
    statement = "update homing_orders set time_next = :now, epoch = :epoch where id in ('1') and time_acked is null"
    execute(engine, statement, now=time.time_ns(), epoch=0)

    assert store.retrieve() is not None


# -- the caller's own transaction -------------------------------------------------------------------------------


def test_a_message_stored_in_a_transaction_is_there_only_on_commit(store: SqlStore, engine: sa.Engine) -> None:
    with engine.connect() as connection:
        store.store("undone", transaction=connection)
        connection.rollback()
        store.store_many(["a", "b"], transaction=connection)
        connection.commit()

    assert [message.content for message in store.claim(10)] == ["a", "b"]


def test_a_message_stored_in_a_session_commits_with_the_applications_own_rows(
    store: SqlStore, engine: sa.Engine
) -> None:
    execute(engine, "create table app (n integer)")
    with Session(engine) as session:
        session.execute(sa.text("insert into app values (1)"))
        store.store("a", transaction=session)
        session.rollback()
        session.execute(sa.text("insert into app values (2)"))
        store.store("b", transaction=session)
        session.commit()

    assert [message.content for message in store.claim(10)] == ["b"]
    with engine.connect() as connection:
        assert connection.execute(sa.text("select n from app")).scalars().all() == [2]


def test_an_acknowledgement_in_a_transaction_counts_only_on_commit(store: SqlStore, engine: sa.Engine) -> None:
    store.store("a")
    message = store.retrieve()
    assert message is not None
    with engine.connect() as connection:
        store.acknowledge(message.id, transaction=connection)
        connection.rollback()
    assert store.count()["leased"] == 1
    with engine.connect() as connection:
        store.acknowledge(message.id, transaction=connection)
        connection.commit()

    assert store.count()["acknowledged"] == 1


def test_a_failed_settlement_undoes_only_itself_in_the_callers_transaction(store: SqlStore, engine: sa.Engine) -> None:
    store.store_many(["a", "b"])
    first, second = store.claim(2)
    store.acknowledge(first)
    execute(engine, "create table app (n integer)")
    with engine.connect() as connection:
        connection.execute(sa.text("insert into app values (1)"))
        with pytest.raises(NotInFlightError, match=first.id):
            store.settle([second, first], transaction=connection)
        connection.commit()

    assert store.count()["leased"] == 1
    with engine.connect() as connection:
        assert connection.execute(sa.text("select n from app")).scalar() == 1


def test_an_id_may_come_again_in_a_transaction_after_the_window_as_it_is_now(database: str, engine: sa.Engine) -> None:
    with opened(database) as admin:
        admin.configure(duplicate_window=0.2)
    with opened(database) as store:
        store.store("first", id="m")
        store.settle(store.claim(1))
        time.sleep(0.3)

        with opened(database) as producer, engine.begin() as connection:
            producer.store("after the window", id="m", transaction=connection)

        assert [message.content for message in store.claim(1)] == ["after the window"]


def test_settling_in_a_transaction_keeps_to_the_properties_as_they_are_now(database: str, engine: sa.Engine) -> None:
    with opened(database) as store, opened(database) as consumer:
        store.store_many(["a", "b"])
        first, second = store.claim(2)
        store.configure(acknowledged="removed", backoff=100)

        with engine.begin() as connection:
            consumer.settle([first, second], [True, False], transaction=connection)

        assert {state: n for state, n in store.count().items() if n} == {"scheduled": 1}


def test_the_first_store_of_all_may_be_in_a_transaction_that_has_the_database_for_itself(
    database: str, engine: sa.Engine
) -> None:
    execute(engine, "create table app (n integer)")
    with opened(database) as producer, engine.begin() as connection:
        connection.execute(sa.text("insert into app values (1)"))
        producer.store("a", transaction=connection)

    with opened(database) as store:
        assert [message.content for message in store.claim(10)] == ["a"]


# -- leases -----------------------------------------------------------------------------------------------------


def lease_of(store: SqlStore, engine: sa.Engine, message_id: str = "a") -> float:
    """How many seconds the message's lease still lasts."""
    with engine.connect() as connection:
        statement = sa.text("select time_next from homing_orders where id = :id")
        end = connection.execute(statement, {"id": message_id}).scalar()
    assert end is not None
    return float(end - time.time_ns()) / SECOND


def test_a_lease_doubles_with_each_delivery_up_to_its_cap_and_is_spread(database: str, engine: sa.Engine) -> None:
    with opened(database, ack_wait=100, max_ack_wait=500, jitter=0.2) as store:
        store.store("a", id="a")
        leases = []
        for _ in range(5):
            message = store.retrieve()
            assert message is not None
            leases.append(lease_of(store, engine))
            store.acknowledge(message, success=False)

    assert leases[0] == pytest.approx(100, abs=5)
    # The last ones may not be longer, and are spread the other way.
    for lease, (least, most) in zip(leases[1:], [(200, 240), (400, 480), (400, 500), (400, 500)], strict=True):
        assert least - 5 < lease <= most


def test_no_lease_is_spread_beyond_its_cap_nor_below_the_first(database: str, engine: sa.Engine) -> None:
    with opened(database, ack_wait=90, max_ack_wait=100, jitter=0.5, max_deliveries=9) as store:
        ids = store.store_many(range(100))
        store.settle(store.claim(100), success=False)
        store.claim(100)
        leases = [lease_of(store, engine, message_id) for message_id in ids]

    assert 85 < min(leases) < 95 < max(leases) <= 100


def test_messages_that_failed_together_come_back_apart(database: str) -> None:
    with opened(database, ack_wait=100, jitter=0.5) as store:
        ids = store.store_many(range(20))
        store.settle(store.claim(20), success=False)
        store.claim(20)
        engine = sa.create_engine(database)
        with engine.connect() as connection:
            ends = set(connection.execute(sa.text("select time_next from homing_orders")).scalars())
        engine.dispose()

    assert len(ends) == len(ids)


def test_a_back_off_makes_a_released_message_wait_longer_each_time(database: str, engine: sa.Engine) -> None:
    with opened(database, backoff=100) as store:
        store.store("a", id="a")
        waits = []
        for _ in range(3):
            message = store.retrieve()
            assert message is not None
            store.acknowledge(message, success=False)
            waits.append(lease_of(store, engine))
            assert store.retrieve() is None
            store.reschedule(["a"], datetime.now(timezone.utc))

    assert [round(wait / 100) for wait in waits] == [1, 2, 4]


def test_a_retry_policy_is_the_back_off_of_a_store(database: str, engine: sa.Engine) -> None:
    policy = RetryPolicy.exponential(9, 100, multiplier=3, max_interval=700, jitter=0)
    with opened(database) as store:
        store.configure(**policy.backoff_options())
        store.store("a", id="a")
        waits = []
        for _ in range(4):
            message = store.retrieve()
            assert message is not None
            store.acknowledge(message, success=False)
            waits.append(lease_of(store, engine))
            store.reschedule(["a"], datetime.now(timezone.utc))

    assert [round(wait / 100) for wait in waits] == [round(policy.delay(attempt) / 100) for attempt in (1, 2, 3, 4)]
    assert [round(wait / 100) for wait in waits] == [1, 3, 7, 7]


def test_the_jitter_of_a_back_off_brings_messages_back_apart_and_none_too_late(database: str) -> None:
    with opened(database) as store:
        store.configure(**RetryPolicy(9, 100, jitter=0.5).backoff_options())
        store.store_many(range(20))
        store.settle(store.claim(20), success=False)
        before = time.time_ns()
        engine = sa.create_engine(database)
        with engine.connect() as connection:
            waits = {
                (end - before) / SECOND
                for end in connection.execute(sa.text("select time_next from homing_orders")).scalars()
            }
        engine.dispose()

    assert len(waits) == 20
    assert 20 < min(waits) <= max(waits) <= 101


@pytest.mark.parametrize("bad", [{"backoff_multiplier": 0.5}, {"max_backoff": 0}, {"backoff_jitter": 2}])
def test_a_back_off_that_cannot_be_is_refused(database: str, bad: dict[str, float]) -> None:
    with opened(database) as store, pytest.raises(ConfigurationError):
        store.configure(**bad)


def test_a_consumer_whose_clock_is_wrong_does_not_take_what_others_hold(database: str) -> None:
    if database.startswith("sqlite"):
        pytest.skip("consumers of SQLite share one machine's clock")
    ahead = SqlStore(sa.make_url(database), "orders", clock=lambda: time.time_ns() + 3600 * SECOND)
    with opened(database) as store, ahead:
        store.store("a")
        assert store.retrieve() is not None

        assert ahead.retrieve() is None

        ahead.store("b")
        # Each reckons the server's time from when it was answered: they may be some milliseconds apart.
        store.acknowledge(take(store, timeout=60))


@pytest.mark.parametrize("hours", [1, -1])
def test_a_clock_that_is_set_meanwhile_changes_no_time(
    database: str, hours: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if database.startswith("sqlite"):
        pytest.skip("consumers of SQLite share one machine's clock")
    right, set_by = time.time_ns, 0
    monkeypatch.setattr(time, "time_ns", lambda: right() + set_by)
    with opened(database) as producer, opened(database) as store:
        producer.store("a", id="a")
        assert [message.id for message in store.claim(1, lease=60)] == ["a"]
        set_by = hours * 3600 * SECOND

        assert producer.retrieve() is None
        producer.store("b", id="b")

        set_by = 0
        assert [message.id for message in store.claim(2)] == ["b"]


@pytest.mark.parametrize("hours", [1, -1])
def test_the_first_call_of_a_consumer_whose_clock_is_wrong_goes_by_the_databases(database: str, hours: int) -> None:
    if database.startswith("sqlite"):
        pytest.skip("consumers of SQLite share one machine's clock")

    def wrong() -> SqlStore:
        return SqlStore(sa.make_url(database), "orders", clock=lambda: time.time_ns() + hours * 3600 * SECOND)

    def now(**shift: float) -> datetime:
        return datetime.now(timezone.utc) + timedelta(**shift)

    with opened(database) as store:
        with wrong() as producer:
            producer.store("a", id="a")
        with wrong() as producer, producer._database._engine.begin() as connection:
            producer.store("b", id="b", transaction=connection)
        for message_id in ("a", "b"):
            (message,) = store.browse(ids=[message_id])
            assert message.enqueued_at is not None
            assert abs(message.enqueued_at - now()) < timedelta(minutes=1)
        store.settle(store.claim(2))

        store.store("later", id="later", scheduled_at=now(minutes=30))
        with wrong() as other:
            assert not other.has_due()
        with wrong() as other:
            assert other.cancel("later")

        store.store("held", id="held")
        (held,) = store.claim(1, batch_id="run", lease=60)
        with wrong() as other:
            assert other.reschedule(["held"], now()) == 0
        with wrong() as other:
            lease = other.held_batch("run")
            assert lease is not None
        with wrong() as other:
            other.renew(lease, 60)
        store.acknowledge(held)


# -- duplicates, rate, properties, columns ----------------------------------------------------------------------


def test_an_id_may_come_again_after_the_window(database: str, clock: Clock) -> None:
    with timed(database, clock, duplicate_window=600) as store:
        store.store("first", id="m")
        store.settle(store.claim(1))
        store.store("within the window", id="m")
        assert store.retrieve() is None
        clock.advance(600)

        store.store("after it", id="m")

        message = store.retrieve()
        assert message is not None
        assert message.content == "after it"


def test_ids_that_differ_only_in_case_or_trailing_space_are_different(store: SqlStore) -> None:
    for message_id in ("a", "A", "a ", "ä"):
        store.store(message_id, id=message_id)

    assert [message.content for message in store.claim(10)] == ["a", "A", "a ", "ä"]


def test_claiming_keeps_to_the_rate() -> None:
    now = 0.0
    limit = RateLimiter(10, burst=1.0, clock=lambda: now)

    assert limit.take(100) == 10
    assert limit.take(100) == 0
    assert limit.pause() == pytest.approx(0.1)
    now = 0.5
    assert limit.pause() == 0
    assert limit.take(100) == 5
    now = 60.0
    assert limit.take(100) == 10
    limit.give_back(4)
    assert limit.take(100) == 4


def test_threads_that_claim_at_once_keep_to_the_rate_together() -> None:
    limit = RateLimiter(10, burst=1.0, clock=lambda: 0.0)

    with ThreadPoolExecutor(8) as pool:
        taken = list(pool.map(lambda _: limit.take(3), range(8)))

    assert sum(taken) == 10


@pytest.fixture
def pace(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock by which stores keep to their rates."""
    monkeypatch.setattr("homing.stores.sql.paced_claims.RateLimiter", partial(RateLimiter, clock=clock.seconds))
    return clock


def test_a_batch_is_found_again_although_the_rate_is_used_up(database: str, pace: Clock) -> None:
    with opened(database, rate=5) as store:
        store.store_many(range(20))
        first = store.claim(20, batch_id="run 1", lease=30)

        again = store.claim(20, batch_id="run 1", lease=30)

        assert [message.id for message in again] == [message.id for message in first]
        assert store.claim(20, batch_id="run 2", lease=30) == []
        pace.advance(1)
        assert len(store.claim(20, batch_id="run 2", lease=30)) == 5, "what is claimed again does not count"


def test_waiting_lasts_until_the_rate_allows_another_message(database: str, pace: Clock) -> None:
    with opened(database, rate=2) as store:
        store.store_many(range(20))
        assert len(store.claim(20)) == 2

        assert not store.wait(0.1)
        pace.advance(0.4)
        assert not store.wait(0.1)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(store.wait, 60)
            pace.advance(0.1)
            assert waiting.result()

        assert len(store.claim(20)) == 1


def test_a_store_with_a_rate_hands_out_no_more(database: str, pace: Clock) -> None:
    with opened(database, rate=5) as store:
        store.store_many(range(20))

        assert len(store.claim(20)) == 5
        assert store.claim(20) == []


def test_a_claim_without_a_limit_takes_the_batch_size_as_it_is_now(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("homing.stores.sql.properties._REFRESH", 0.0)
    with opened(database, batch_size=2) as consumer, opened(database) as admin:
        consumer.store_many(range(10))
        assert [message.content for message in consumer.claim()] == [0, 1]

        admin.configure(batch_size=3)

        assert [message.content for message in consumer.claim()] == [2, 3, 4]
        assert len(consumer.claim(1)) == 1
        with pytest.raises(ConfigurationError, match="batch_size must be an integer >= 1, got '0'"):
            opened(database, batch_size=0)


def test_changed_properties_reach_a_running_consumer(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(properties, "_REFRESH", 0.05)
    with opened(database, ack_wait=7) as running, opened(database) as admin:
        assert running.properties.ack_wait == 7
        admin.configure(ack_wait=99, max_deliveries=2)
        time.sleep(0.1)

        assert (running.properties.ack_wait, running.properties.max_deliveries) == (99, 2)
        admin.configure(ack_wait=None)
        time.sleep(0.1)
        assert running.properties.ack_wait == 7


def test_properties_set_at_the_same_time_are_all_set(database: str) -> None:
    changes: list[dict[str, Any]] = [{"ack_wait": 7}, {"jitter": 0.5}, {"batch_size": 9}, {"rate": 3}, {"backoff": 2}]
    with opened(database) as store, ThreadPoolExecutor(len(changes)) as pool:
        store.configure(max_deliveries=4)
        for _ in range(5):
            store.configure(**{name: None for change in changes for name in change})
            list(pool.map(lambda change: store.configure(**change), changes))

            now = asdict(store.configure(max_deliveries=4))
            assert {name: now[name] for change in changes for name in change} == {
                name: value for change in changes for name, value in change.items()
            }


def test_a_property_that_does_not_exist_is_refused(store: SqlStore) -> None:
    with pytest.raises(ConfigurationError, match="ack_wait"):
        store.configure(akc_wait=1)
    with pytest.raises(ConfigurationError, match="ack_wait must be a number >= 1e-06, got 0"):
        store.configure(ack_wait=0)


def test_columns_of_the_application_are_filled_from_the_headers(database: str, engine: sa.Engine) -> None:
    with opened(database) as store:
        store.store("before there were columns")
    with opened(database, columns="region,customer:bigint") as store:
        store.store("a", headers={"region": "eu", "customer": 2**40, "other": 1})
        with engine.connect() as connection:
            rows = connection.execute(sa.text("select region, customer from homing_orders order by sequence")).all()

        assert [tuple(row) for row in rows] == [(None, None), ("eu", 2**40)]
        assert store.claim(2)[1].headers == {"region": "eu", "customer": 2**40, "other": 1}


def test_acknowledged_messages_are_purged_by_themselves_after_purge_after(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("homing.stores.sql.paced_claims._PURGE_EVERY", 0.0)
    with opened(database, purge_after=0.1) as store:
        store.store_many(range(10))
        store.settle(store.claim(10))
        time.sleep(0.2)
        store.claim(1)

        assert sum(store.count().values()) == 0


def test_messages_with_much_and_with_little_written_on_them_come_in_order_and_whole(store: SqlStore) -> None:
    much = {"subject": "s", "correlation_id": "c", "reply_to": "", "dead_letter_source": "elsewhere"}

    def claimed(*messages: Message) -> list[Message]:
        store.store_many(messages)
        found = store.claim(10)
        store.settle(found)
        return found

    for turn in range(3):  # whatever the claim before has found
        few = claimed(Message(f"{turn} few", turn))
        mixed = claimed(Message(f"{turn} a", turn), Message(f"{turn} b", turn, **much), Message(f"{turn} c", turn))

        assert [(m.id, m.content, m.subject) for m in few] == [(f"{turn} few", turn, None)]
        assert [m.id for m in mixed] == [f"{turn} a", f"{turn} b", f"{turn} c"]
        assert [{name: getattr(m, name) for name in much} for m in mixed] == [
            dict.fromkeys(much),
            much,
            dict.fromkeys(much),
        ]


def test_a_payload_of_a_megabyte_survives(store: SqlStore) -> None:
    store.store("x" * 1_000_000)

    message = store.retrieve()

    assert message is not None
    assert len(message.content) == 1_000_000


# -- waking up --------------------------------------------------------------------------------------------------


def test_a_waiting_consumer_hears_of_a_message_at_once(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("homing.stores.sql.notify._LOOK_AGAIN", 1e6)
    with opened(database) as consumer, opened(database) as producer, ThreadPoolExecutor(1) as pool:
        producer.count()
        waits = threading.Event()
        monkeypatch.setattr(consumer._wake_up, "_pause", _after(waits.set, consumer._wake_up._pause))
        waiting = pool.submit(consumer.wait, 1e6)
        try:
            assert waits.wait(60)
            producer.store("a")
            assert waiting.result(60)
        finally:
            consumer.close()


def _after(first: Callable[[], object], then: Callable[..., object]) -> Callable[..., object]:
    def both(*args: object) -> object:
        first()
        return then(*args)

    return both


def notifications(store: SqlStore, work: Callable[[], object]) -> int:
    """How often PostgreSQL's listeners hear of this work."""
    listener: Any = store._database.connect_apart()
    listener.dbapi_connection.autocommit = True
    listener.dbapi_connection.execute('LISTEN "homing_orders"')
    work()
    # Whatever is said comes in the order of the commits.
    with store._database._engine.begin() as connection:
        connection.exec_driver_sql("NOTIFY \"homing_orders\", 'that is all'")
    with closing(listener.dbapi_connection.notifies(timeout=60)) as said:
        heard = len(list(takewhile(lambda notification: notification.payload != "that is all", said)))
    listener.close()
    return heard


def test_whatever_makes_a_message_due_notifies_and_a_plain_acknowledgement_does_not(postgresql: Any) -> None:
    with opened(postgresql.empty_database()) as store:
        store.store_many([Message(name, name) for name in "abcd"])
        (a, b, c, d) = store.claim(4, lease=60)
        assert notifications(store, lambda: store.acknowledge(a)) == 0
        assert notifications(store, lambda: store.settle([b, c], [True, False])) == 1
        assert notifications(store, lambda: store.acknowledge(d, success=False)) == 1
        assert notifications(store, lambda: store.reschedule(["d"], datetime.now(timezone.utc))) == 1
        assert notifications(store, lambda: store.reschedule(["unknown"], datetime.now(timezone.utc))) == 0
        store.settle(store.claim(2))

        store.store_many([Message(f"s{n}", n, session_id="s") for n in range(4)])
        assert notifications(store, lambda: store.acknowledge(store.claim(1)[0])) == 1
        assert notifications(store, lambda: store.acknowledge(store.claim(1)[0].id)) == 1
        assert notifications(store, lambda: store.dead_letter(store.claim(1)[0], reason="bad")) == 1
        assert notifications(store, lambda: store.defer(store.claim(1)[0])) == 1


def test_who_meets_a_session_in_his_first_claim_notifies_of_its_next_message(postgresql: Any) -> None:
    database = postgresql.empty_database()
    with opened(database) as store:
        store.store_many(["a", "b", Message("s0", 0, session_id="s"), Message("s1", 1, session_id="s")])

    with opened(database) as store:
        *_, first = store.claim(3)
        assert first.id == "s0"
        assert notifications(store, lambda: store.acknowledge(first)) == 1


def test_a_transaction_notifies_once_however_many_messages_it_stores(postgresql: Any) -> None:
    database = postgresql.empty_database()
    engine = sa.create_engine(database)
    with opened(database) as store, engine.connect() as connection:
        store.count()

        def store_some() -> None:
            store.store("a", transaction=connection)
            store.store_many(range(100), transaction=connection)
            connection.commit()

        assert notifications(store, store_some) == 1
    engine.dispose()


def test_an_acknowledgement_that_comes_too_late_in_a_transaction_is_refused(database: str, engine: sa.Engine) -> None:
    with opened(database) as store:
        store.store(Message("a", "a"))
        (message,) = store.claim(1, lease=0.05)
        time.sleep(0.1)

        with engine.connect() as connection, pytest.raises(LeaseLostError):
            store.acknowledge(message, transaction=connection)


# -- reading only -----------------------------------------------------------------------------------------------


def test_a_store_that_is_only_read_refuses_to_write_and_makes_no_table(database: str, engine: sa.Engine) -> None:
    url = f"{database}?store=orders"
    execute(engine, "create table other (id integer)")  # a file that is there, on SQLite
    with open_sql_store(url, read_only=True) as missing, pytest.raises(StoreError, match="no table"):
        missing.count()
    assert [name for name in sa.inspect(engine).get_table_names() if name.startswith("homing_")] == []
    with open_sql_store(url) as store:
        store.store(1)

    with open_sql_store(url, read_only=True) as only_read:
        assert only_read.count()["available"] == 1
        for write in (lambda: only_read.store(2), only_read.retrieve, lambda: only_read.purge(0)):
            with pytest.raises(StoreError):
                write()

    with open_sql_store(url) as store:
        assert (store.count()["available"], store.count()["leased"]) == (1, 0)
