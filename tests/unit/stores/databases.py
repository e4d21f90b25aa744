"""A SQL store on each of the three databases, and the application's own way into them."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from homing import open_store
from homing.stores.sql import SqlStore


def opened(database: str, **options: Any) -> SqlStore:
    query = "&".join(f"{name}={value}" for name, value in options.items())
    store = open_store(f"{database}?store=orders&{query}")
    assert isinstance(store, SqlStore)
    return store


def execute(engine: sa.Engine, statement: str, **values: Any) -> None:
    with engine.begin() as connection:
        connection.execute(sa.text(statement), values)
