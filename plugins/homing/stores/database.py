"""Opens a database for the embedded bus, which keeps tables of its own beside the stores in it."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection

from homing.stores.sql import SqlStore, open_sql_store
from homing.stores.sql.database import Database
from homing.stores.sql.schema import Key, registry_table, table_name
from homing.stores.sql.timeouts import limited_to

__all__ = ["Key", "SqlStore", "drop_store", "limited_to", "open_database", "open_sql_store"]


def open_database(url: URL, name: str, *tables: sa.Table) -> Database:
    """The database, not yet connected; these tables are made when they are first needed. `name` is for error texts."""
    database = Database(url, name)
    database.require(*tables)
    return database


def drop_store(connection: Connection, name: str) -> None:
    """Removes a store with all its messages. A process that still has it open gets an error about a missing table."""
    registry, table = registry_table(), table_name(name)
    connection.execute(registry.delete().where(registry.c.name == table))
    sa.Table(table, sa.MetaData()).drop(connection, checkfirst=True)
