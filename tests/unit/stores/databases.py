"""A SQL store on each of the three databases, and the application's own way into them."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from homing import open_store
from homing.stores.sql import SqlStore
from tests.clocks import Clock


def opened(database: str, **options: Any) -> SqlStore:
    query = "&".join(f"{name}={value}" for name, value in options.items())
    store = open_store(f"{database}?store=orders&{query}")
    assert isinstance(store, SqlStore)
    return store


def timed(database: str, clock: Clock, **properties: Any) -> SqlStore:
    """A store for which time passes when this clock does; it begins with the time of the database's server."""
    store = SqlStore(sa.make_url(database), "orders", clock=clock, **properties)
    store.count()  # makes the tables, and looks at the server's clock
    store._database._measures = False
    return store


def execute(engine: sa.Engine, statement: str, **values: Any) -> None:
    with engine.begin() as connection:
        connection.execute(sa.text(statement), values)
