"""How large a message may be: the same limit on all ways in, and a clear word to whoever is beyond it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from homing.errors import ConfigurationError, TooLargeError
from homing.message import Message
from homing.store import BROWSE, Store
from homing.stores import open_store
from homing.stores.sql import SqlStore
from tests.rabbitmq_server import RabbitMQ

LIMIT = 1000


@pytest.fixture(params=["sqlite", "postgresql", "mariadb", "memory", "rabbitmq"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    name = f"sizes-{uuid.uuid4().hex}"
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/store.db?store=orders"
    elif request.param == "memory":
        url = f"memory://{name}?purge_after=1"
    elif request.param == "rabbitmq":
        url = f"{request.getfixturevalue('rabbitmq').url}?store={name}"
    else:
        url = f"{request.getfixturevalue(request.param).empty_database()}?store=orders"
    with open_store(f"{url}&max_message_bytes={LIMIT}") as opened:
        yield opened


def test_a_message_beyond_the_limit_is_refused_with_its_size_the_limit_and_what_to_do(store: Store) -> None:
    with pytest.raises(
        TooLargeError, match=r"message big .* bytes .*max_message_bytes is 1000.*Put the content elsewh"
    ):
        store.store("x" * (LIMIT + 1), id="big")
    assert store.retrieve() is None

    store.store("x" * (LIMIT - 300), id="small")
    message = store.retrieve()
    assert message is not None
    assert message.id == "small"


def test_of_many_none_is_stored_when_one_is_too_large(store: Store) -> None:
    with pytest.raises(TooLargeError):
        store.store_many(["small", "x" * (LIMIT + 1)])
    assert store.retrieve() is None


def test_headers_and_properties_count_too(store: Store) -> None:
    with pytest.raises(TooLargeError):
        store.store("x" * 400, headers={"trace": "y" * 700})
    with pytest.raises(TooLargeError):
        store.store(Message("m", "x" * 600, subject="s" * 200, to="t" * 250))
    assert store.retrieve() is None


def test_bytes_count_as_they_are_written_down(store: Store) -> None:
    with pytest.raises(TooLargeError):
        store.store(b"x" * 800)  # 1068 in base64
    store.store(b"x" * 300)


def test_the_record_of_a_failure_and_a_dead_letter_may_be_larger_than_a_message(store: Store) -> None:
    content = "x" * (LIMIT - 200)
    record = {"homing": "failure", "message": {"body": content}, "errors": {"crm": {"stack": "y" * 1500}}}
    store.store(record)
    store.store(Message("dead", content, headers={"stack": "y" * 1500}, dead_letter_reason="ValueError"))


def test_the_limit_can_be_changed_for_all_who_use_a_store(database: str) -> None:
    with open_store(f"{database}?store=orders") as store, open_store(f"{database}?store=orders") as other:
        assert isinstance(store, SqlStore)
        store.configure(max_message_bytes=100)
        with pytest.raises(TooLargeError, match="max_message_bytes is 100"):
            other.store("x" * 200)


def test_the_limit_holds_in_a_transaction_of_the_callers_own(database: str) -> None:
    engine = sa.create_engine(database)
    with open_store(f"{database}?store=orders&max_message_bytes=100") as store:
        with engine.begin() as connection:
            store.store("small", transaction=connection)
            with pytest.raises(TooLargeError):
                store.store("x" * 200, transaction=connection)
        assert BROWSE in store.features
        assert [message.content for message in store.browse()] == ["small"]
    engine.dispose()


@pytest.mark.parametrize("value", ["0", "-1", "much", str(2**30)])
def test_a_limit_that_is_none_is_refused(value: str, database: str) -> None:
    with pytest.raises(ConfigurationError, match="max_message_bytes"):
        open_store(f"{database}?store=orders&max_message_bytes={value}")


def test_by_default_a_message_has_sixteen_mebibytes_at_most(database: str) -> None:
    with open_store(f"{database}?store=orders") as store:
        with pytest.raises(TooLargeError, match=r"16777217|16777[0-9]{3}"):
            store.store("x" * (2**24 + 1))
        store.store("x" * 15_000_000)
        message = store.retrieve()
        assert message is not None
        assert len(message.content) == 15_000_000


def test_what_goes_into_amqps_own_headers_must_fit_into_a_frame(rabbitmq: RabbitMQ) -> None:
    with open_store(f"{rabbitmq.url}?store=size-headers") as store:
        with pytest.raises(TooLargeError, match="headers and properties have"):
            store.store("small", headers={"long": "x" * 200_000})
        store.store("small", headers={"long": "x" * 40_000})
        message = store.retrieve()
        assert message is not None
        assert len(message.headers["long"]) == 40_000
        store.dead_letter(message, reason="no good", description="x" * 300_000)
    with open_store(f"{rabbitmq.url}?store=size-headers.dead") as dead:
        letter = dead.retrieve()
        assert letter is not None
        assert letter.dead_letter_description is not None
        assert "(cut: " in letter.dead_letter_description
