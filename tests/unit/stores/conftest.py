from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

import pytest
import sqlalchemy as sa

from homing.stores.sql import SqlStore


class Clock:
    """A clock that stands still until it is told otherwise, in nanoseconds."""

    def __init__(self) -> None:
        self.now = 1_800_000_000_000_000_000

    def __call__(self) -> int:
        self.now += 1_000  # time never stands quite still, or nothing would have an order
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += int(seconds * 1_000_000_000)

    def after(self, seconds: float) -> datetime:
        """The time so long from now."""
        return datetime.fromtimestamp(self.now / 1_000_000_000 + seconds, timezone.utc)


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
