"""What a caller may give as his transaction, on all three databases."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from homing.errors import ConfigurationError
from homing.stores.sql import SqlStore
from tests.unit.stores.databases import opened


@pytest.fixture
def store(database: str) -> Iterator[SqlStore]:
    with opened(database) as store:
        store.store("a", id="a")
        yield store


def test_an_acknowledgement_in_a_session_holds_when_it_is_committed(store: SqlStore, engine: sa.Engine) -> None:
    (message,) = store.claim(1)
    with Session(engine) as session:
        store.acknowledge(message, transaction=session)
        session.rollback()
    assert store.count()["leased"] == 1

    with Session(engine) as session:
        store.acknowledge(message, transaction=session)
        session.commit()

    assert store.count()["acknowledged"] == 1


def test_the_session_of_a_thread_is_a_session(store: SqlStore, engine: sa.Engine) -> None:
    session = scoped_session(sessionmaker(engine))
    store.store("b", transaction=session)
    session.commit()
    session.remove()

    assert store.count()["available"] == 2


def test_what_is_no_transaction_is_refused(store: SqlStore, engine: sa.Engine) -> None:
    with pytest.raises(ConfigurationError, match="takes a SQLAlchemy Connection or Session, not a Engine"):
        store.store("b", transaction=engine)

    assert store.count()["available"] == 1


def test_a_connection_without_transactions_is_refused_and_nothing_is_stored(store: SqlStore, engine: sa.Engine) -> None:
    if engine.dialect.name == "sqlite":
        pytest.skip("Python's driver for SQLite does not tell who begins transactions himself")
    with (
        engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection,
        pytest.raises(ConfigurationError, match="AUTOCOMMIT"),
    ):
        store.store("b", transaction=connection)

    assert store.count()["available"] == 1
