from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from homing.stores.sql import SqlStore
from tests.clocks import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/inbox.db"


@pytest.fixture
def store(url: str, clock: Clock) -> Iterator[SqlStore]:
    with SqlStore(sa.make_url(url), "orders", clock=clock, max_deliveries=3) as store:
        yield store


@pytest.fixture
def other(url: str, clock: Clock) -> Iterator[SqlStore]:
    """A second consumer of the same store."""
    with SqlStore(sa.make_url(url), "orders", clock=clock, max_deliveries=3) as store:
        yield store


@pytest.fixture
def engine(database: str) -> Iterator[sa.Engine]:
    """The application's own way into the database."""
    engine = sa.create_engine(database)
    yield engine
    engine.dispose()
