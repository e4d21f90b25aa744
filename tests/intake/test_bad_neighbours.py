"""One stranger's header that does not fit a column, or a message that is too large, holds up no other message."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pika
import pytest
import sqlalchemy as sa

from homing import Message, open_store
from homing.delivery.intake import take_in
from homing.errors import StoreError, StoreUnavailableError
from homing.store import Store
from homing.stores.memory.store import MemoryStore
from homing.stores.sql import SqlStore
from tests.intake.test_intake import eventually, take_all
from tests.rabbitmq_server import RabbitMQ, remove_store
from tests.servers import MariaDB

MARK = "hunter2-hunter2"

#: Headers that do not fit, by what makes them so; the column that each is for.
UNFIT: dict[str, tuple[str, Any]] = {
    "NUL": ("region", f"{MARK}\0"),
    "too long": ("region", MARK * 30),
    "a list": ("region", [MARK]),
    "a table": ("region", {"of": MARK}),
    "not a number": ("customer", MARK),
    "a fraction": ("customer", Decimal("1.5")),
    "a time": ("customer", datetime(2026, 11, 18, tzinfo=timezone.utc)),
    "a truth value": ("customer", True),
    "digits out of range": ("customer", "9" * 19),
    "other digits": ("customer", "１２"),
    "a time of no zone": ("due", "2026-11-18T20:15"),
    "a rounded number": ("price", "1.0000000001"),
    "neither true nor false": ("paid", MARK),
}

#: Columns as somebody made them by hand, with a header that does not fit; SQLite holds only to what is NOT NULL or
#: checked.
STRICTER: dict[str, tuple[str, Any]] = {
    "region varchar(4) check (length(region) <= 4)": ("region", "longer than four"),
    "region varchar(255) not null": ("region", None),
    "customer smallint check (customer between -32768 and 32767)": ("customer", 40_000),
    "region varchar(255) check (region like '____-__-__')": ("region", "2026-02-31x"),
}


@pytest.fixture
def broker_queue(rabbitmq: RabbitMQ) -> Iterator[str]:
    name = f"t{uuid.uuid4().hex[:12]}"
    yield name
    remove_store(rabbitmq.url, name)


@pytest.fixture
def source(rabbitmq: RabbitMQ, broker_queue: str) -> Iterator[Store]:
    with open_store(f"{rabbitmq.url}?store={broker_queue}") as store:
        store.retrieve()  # which makes its queues
        yield store


def open_target(database: str, **options: Any) -> SqlStore:
    query = "&".join(f"{name}={value}" for name, value in {"store": "orders", **options}.items())
    store = open_store(f"{database}?{query}")
    assert isinstance(store, SqlStore)
    return store


def publish(rabbitmq: RabbitMQ, queue: str, messages: list[tuple[str, dict[str, Any]]], body: bytes = b"x") -> None:
    """As a stranger does, by AMQP alone."""
    with pika.BlockingConnection(pika.URLParameters(rabbitmq.url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for message_id, headers in messages:
            channel.basic_publish("", queue, body, pika.BasicProperties(message_id=message_id, headers=headers))


def dead_of(rabbitmq: RabbitMQ, queue: str) -> dict[str, Message]:
    found = {}
    with open_store(f"{rabbitmq.url}?store={queue}.dead") as dead:
        while (message := dead.retrieve()) is not None:
            dead.acknowledge(message)
            found[message.id] = message
    return found


@pytest.mark.services
def test_of_a_hundred_ten_bad_ones_are_dead_lettered_alone(
    rabbitmq: RabbitMQ, broker_queue: str, source: Store, database: str
) -> None:
    chance = random.Random(7)  # noqa: S311
    kinds = dict(zip(chance.sample(range(100), len(UNFIT)), UNFIT, strict=True))
    messages = [
        (f"m{n}", dict([UNFIT[kinds[n]]]) if n in kinds else {"region": f"r{n}", "customer": n}) for n in range(100)
    ]
    publish(rabbitmq, broker_queue, messages)

    with open_target(database, columns="region,customer:bigint,due:time,price:decimal,paid:boolean") as target:
        assert take_all(source, target, 87) == 87
        held = {message.id for message in target.browse(1000)}

    assert held == {f"m{n}" for n in range(100) if n not in kinds}
    assert source.retrieve() is None
    dead = dead_of(rabbitmq, broker_queue)
    assert set(dead) == {f"m{n}" for n in kinds}
    for n, kind in kinds.items():
        text = dead[f"m{n}"].dead_letter_description or ""
        assert repr(UNFIT[kind][0]) in text, kind
        assert "column" in text
        assert MARK not in text
        assert dead[f"m{n}"].dead_letter_reason == "unreadable"


@pytest.mark.services
@pytest.mark.parametrize("column", STRICTER)
def test_a_column_that_is_stricter_than_it_was_said_to_be_refuses_one_message_alone(
    rabbitmq: RabbitMQ, broker_queue: str, source: Store, database: str, column: str
) -> None:
    name, value = STRICTER[column]
    if "not null" in column and database.startswith("sqlite"):
        # SQLite adds no such column without a default.
        column = "region varchar(255) check (region is not null)"
    add_column(database, column)
    good = 7 if name == "customer" else "2026-11-18" if "like" in column else "eu"
    bad = {} if value is None else {name: value}
    publish(rabbitmq, broker_queue, [(f"m{n}", bad if n in (3, 17) else {name: good}) for n in range(20)])

    with open_target(database, columns="customer:bigint" if name == "customer" else "region") as target:
        assert take_all(source, target, 18) == 18
        assert take_in(source, target, 100) == 0
        assert {message.id for message in target.browse(1000)} == {f"m{n}" for n in range(20) if n not in (3, 17)}

    dead = dead_of(rabbitmq, broker_queue)
    assert set(dead) == {"m3", "m17"}
    texts = [one.dead_letter_description or "" for one in dead.values()]
    assert all(f"{name!r} does not fit the column" in text for text in texts)
    assert not any(str(value) in text for text in texts)


@pytest.mark.services
def test_a_day_that_does_not_exist_is_refused_alone(
    rabbitmq: RabbitMQ, broker_queue: str, source: Store, mariadb: MariaDB
) -> None:
    """On MariaDB, which makes dates of texts by itself."""
    database = mariadb.empty_database()
    add_column(database, "region date")
    days = ["2026-02-28", "2026-02-31", "2026-03-01"]
    publish(rabbitmq, broker_queue, [(day, {"region": day}) for day in days])

    with open_target(database, columns="region") as target:
        assert take_all(source, target, 2) == 2
        assert {message.id for message in target.browse(10)} == {"2026-02-28", "2026-03-01"}
    assert set(dead_of(rabbitmq, broker_queue)) == {"2026-02-31"}


@pytest.mark.services
def test_a_default_holds_for_who_has_no_header_whatever_the_neighbours_have(
    rabbitmq: RabbitMQ, broker_queue: str, source: Store, database: str
) -> None:
    add_column(database, "region varchar(255) default 'none' not null")
    publish(rabbitmq, broker_queue, [(f"m{n}", {} if n % 2 else {"region": "eu"}) for n in range(4)])

    with open_target(database, columns="region") as target:
        assert take_all(source, target, 4) == 4
    engine = sa.create_engine(database)
    with engine.connect() as connection:
        found = connection.exec_driver_sql("select region from homing_orders order by id").scalars().all()
    engine.dispose()
    assert found == ["eu", "none", "eu", "none"]


@pytest.mark.services
def test_what_plain_sql_wrote_into_a_column_since_makes_no_second_message_of_one_that_comes_again(
    database: str,
) -> None:
    source = MemoryStore(uuid.uuid4().hex)
    with open_target(database, columns="region") as target:
        source.store(Message("m1", "x", headers={"region": "eu"}))
        assert take_in(source, target, 10) == 1
        engine = sa.create_engine(database)
        with engine.begin() as connection:
            connection.exec_driver_sql("update homing_orders set region = 'us'")
        engine.dispose()

        again = MemoryStore(uuid.uuid4().hex)
        again.store(Message("m1", "x", headers={"region": "eu"}))
        assert take_in(again, target, 10) == 0
        assert [(message.id, message.headers) for message in target.browse(10)] == [("m1", {"region": "us"})]


def add_column(database: str, column: str) -> None:
    """As somebody does by hand, to a store's table."""
    with open_target(database) as target:
        target.count()
    engine = sa.create_engine(database)
    with engine.begin() as connection:
        connection.exec_driver_sql(f"alter table homing_orders add column {column}")
    engine.dispose()


@pytest.mark.services
def test_a_table_that_refuses_every_message_is_no_fault_of_theirs(
    rabbitmq: RabbitMQ, broker_queue: str, source: Store, database: str
) -> None:
    """A column that is not among `columns=`: whoever made it has to mend it, and no message is given up for it."""
    with open_target(database) as target:
        target.count()
    engine = sa.create_engine(database)
    if database.startswith("sqlite"):
        broken = (
            "create trigger refuse before insert on homing_orders begin select raise(abort, 'closed'); end",
            "drop trigger refuse",
        )
    else:
        broken = (
            "alter table homing_orders add column other integer not null, add check (other > 0)",
            "alter table homing_orders drop column other",
        )
    with engine.begin() as connection:
        connection.exec_driver_sql(broken[0])
    publish(rabbitmq, broker_queue, [(f"m{n}", {"region": "eu"}) for n in range(5)])

    with open_target(database, columns="region") as target:
        with pytest.raises(StoreError) as caught:
            take_all(source, target, 5)
        assert not isinstance(caught.value, StoreUnavailableError)
        with engine.begin() as connection:
            connection.exec_driver_sql(broken[1])
        assert take_all(source, target, 5) == 5
    engine.dispose()
    assert dead_of(rabbitmq, broker_queue) == {}


@pytest.mark.services
def test_an_outage_in_the_midst_of_bad_messages_gives_up_no_good_one(
    rabbitmq: RabbitMQ, broker_queue: str, source: Store, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(rabbitmq, broker_queue, [(f"m{n}", {"customer": "no" if n % 5 == 0 else n}) for n in range(20)])

    with open_target(database, columns="customer:bigint") as target:
        store_many, calls = target.store_many, []

        def away_at_times(contents: Any, **options: Any) -> list[str]:
            calls.append(1)
            if len(calls) in (3, 9):
                raise StoreUnavailableError("the database is away")
            return store_many(contents, **options)

        monkeypatch.setattr(target, "store_many", away_at_times)
        take_all(source, target, 1)
        held = {message.id for message in target.browse(100)}

    assert len(calls) > 9, "the outages were met"
    assert held == {f"m{n}" for n in range(20) if n % 5}
    assert set(dead_of(rabbitmq, broker_queue)) == {f"m{n}" for n in range(0, 20, 5)}


@pytest.mark.services
@pytest.mark.parametrize("claims", ["nothing", "to be dead", "to be a record"])
def test_what_is_too_large_is_dead_lettered_alone_whatever_it_claims_to_be(
    rabbitmq: RabbitMQ, broker_queue: str, source: Store, database: str, claims: str
) -> None:
    """A failure record and a dead letter may be larger than a message, but not because a stranger says so."""
    headers = {"homing-dead-letter-reason": "so it says"} if claims == "to be dead" else {}
    kind = "application/json" if claims == "to be a record" else "text/plain"
    body = b'{"homing": "failure", "pad": "%s"}' % (b"x" * 5000)
    publish(rabbitmq, broker_queue, [("before", {}), ("after", {})])
    with pika.BlockingConnection(pika.URLParameters(rabbitmq.url)) as connection:
        properties = pika.BasicProperties(message_id="large", content_type=kind, headers=headers)
        connection.channel().basic_publish("", broker_queue, body, properties)

    with open_target(database, max_message_bytes=1000) as target:
        assert take_all(source, target, 2) == 2
        while not (dead := dead_of(rabbitmq, broker_queue)):
            take_in(source, target, 10)
        assert {message.id for message in target.browse(10)} == {"before", "after"}
    assert [(one.id, one.dead_letter_reason) for one in dead.values()] == [("large", "too large")]


@pytest.mark.services
def test_what_a_stranger_says_of_its_death_is_not_taken_over(
    rabbitmq: RabbitMQ, broker_queue: str, source: Store, tmp_path: Path
) -> None:
    said = {f"homing-dead-letter-{word}": "orders" for word in ("reason", "description", "source")}
    publish(rabbitmq, broker_queue, [("alive", said)])

    with open_target(f"sqlite:///{tmp_path}/store.db") as target:
        assert take_all(source, target, 1) == 1
        (held,) = target.browse(10)
    assert (held.dead_letter_reason, held.dead_letter_description, held.dead_letter_source) == (None, None, None)


@pytest.mark.services
def test_an_id_that_no_database_can_hold_is_dead_lettered_alone(
    rabbitmq: RabbitMQ, broker_queue: str, source: Store, database: str
) -> None:
    publish(rabbitmq, broker_queue, [("before", {}), ("nul\0", {}), ("x" * 250 + "\0", {}), ("after", {})])

    with open_target(database) as target:
        assert take_all(source, target, 2) == 2
        assert {message.id for message in target.browse(10)} == {"before", "after"}
    assert set(dead_of(rabbitmq, broker_queue)) == {"nul\0", "x" * 250 + "\0"}


def test_a_message_that_its_broker_cannot_put_aside_uses_up_no_deliveries_of_those_before_it(
    rabbitmq: RabbitMQ, broker_queue: str, tmp_path: Path
) -> None:
    """It cannot be read, and whenever it is to go to the dead letters their queue has just been removed."""
    url = f"{rabbitmq.url}?store={broker_queue}"
    with ExitStack() as stack:
        sources = [stack.enter_context(open_store(url)) for _ in range(8)]
        for source in sources:
            source.retrieve()  # connects
            source.lengths()
        sources[0].store_many([Message(f"m{n}", n) for n in range(3)])
        with pika.BlockingConnection(pika.URLParameters(rabbitmq.url)) as connection:
            channel = connection.channel()
            unreadable = pika.BasicProperties(message_id="bad", type="homing/json/1")
            channel.confirm_delivery()
            channel.basic_publish("", broker_queue, b"{", unreadable)
            with open_target(f"sqlite:///{tmp_path}/target.db") as target:
                for source in sources:
                    if not target.browse(1):
                        channel.queue_delete(f"{broker_queue}.dead")
                    with suppress(StoreError):
                        take_in(source, target, 100)
                    source.close()

                assert sorted(message.id for message in target.browse(10)) == ["m0", "m1", "m2"]
    with open_store(f"{url}.dead") as dead:
        assert eventually(dead.retrieve).id == "bad"
        assert dead.retrieve() is None
