"""A clock that tests move on: none has to wait until time has passed, nor to be done before it does."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from homing.stores.sql import SqlStore
from homing.stores.sql.database import Database


class Clock:
    """A clock that stands still until it is told otherwise, in nanoseconds."""

    def __init__(self) -> None:
        self.now = 1_800_000_000_000_000_000

    def __call__(self) -> int:
        self.now += 1_000  # time never stands quite still, or nothing would have an order
        return self.now

    def seconds(self) -> float:
        """The same clock, as rates read it."""
        return self.now / 1_000_000_000

    def advance(self, seconds: float) -> None:
        self.now += int(seconds * 1_000_000_000)

    def after(self, seconds: float) -> datetime:
        """The time so long from now."""
        return datetime.fromtimestamp(self.now / 1_000_000_000 + seconds, timezone.utc)


def let_time_pass(store: SqlStore, seconds: float) -> None:
    """For this consumer of a SQLite database it is so much later, and for all others it is not."""
    ticks = store._database._ticks
    store._database._ticks = lambda: ticks() + int(seconds * 1_000_000_000)


def let_all_time_pass(patch: pytest.MonkeyPatch, seconds: float) -> None:
    """For every SQL store of this process it is so much later."""
    now = Database.now
    patch.setattr(Database, "now", lambda database: now(database) + int(seconds * 1_000_000_000))
