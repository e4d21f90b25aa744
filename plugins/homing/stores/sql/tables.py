"""Makes the tables, and the columns and indexes that an existing table lacks. Two processes may do so at once."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Column, Table
from sqlalchemy.engine import Connection
from sqlalchemy.schema import CreateColumn, CreateIndex, CreateTable, ExecutableDDLElement

from homing.errors import ConfigurationError
from homing.stores.sql import archive_days
from homing.stores.sql.dialects import Dialect
from homing.stores.sql.schema import DAYS, registry_table

log = logging.getLogger(__name__)

#: The schema this code reads and writes. 1 to 3 were never released.
VERSION = 4

_TUNING = (
    # Every message is written three times: stored, leased, settled. Room for all three on the page it is on, and in its
    # indexes, makes claiming and settling half as expensive.
    "fillfactor = 40",
    # Queues churn: without this, vacuum would wait until a fifth of a large table is dead.
    "autovacuum_vacuum_scale_factor = 0.0",
    "autovacuum_vacuum_threshold = 10000",
    "autovacuum_vacuum_cost_delay = 0",
)

_IDENTITY = re.compile("[0-9a-f]{16}")

_registry = registry_table()


def is_complete(connection: Connection, table: Table) -> bool:
    """Whether the table is there, with every column and index it should have. Only reads.

    Raises ConfigurationError for a table of another version.
    """
    inspector = sa.inspect(connection)
    if not inspector.has_table(_registry.name):
        return False
    version = connection.execute(sa.select(_registry.c.version).where(_registry.c.name == table.name)).scalar()
    if version is not None and version != VERSION:
        age = "a newer" if version > VERSION else "an older"
        raise ConfigurationError(
            f"table {table.name} has schema version {version}, of {age} Homing, and this one reads {VERSION}: use the "
            "Homing that made it, or another store name or database"
        )
    if version is None or not inspector.has_table(table.name):
        return False
    there = {column["name"] for column in inspector.get_columns(table.name)}
    indexes = {index["name"] for index in inspector.get_indexes(table.name)}
    if DAYS in table.info and not archive_days.is_there(connection, table):
        return False
    return there >= set(table.c.keys()) and indexes >= {index.name for index in table.indexes}


def make(connection: Connection, dialect: Dialect, tables: Sequence[Table]) -> None:
    """Makes what is missing of these tables. Others who do the same meanwhile wait, and then find it done."""
    dialect.lock_schema(connection)
    try:
        connection.execute(CreateTable(_registry, if_not_exists=True))
        for table in tables:
            if not is_complete(connection, table):
                _make(connection, table)
                stamp = dialect.upsert(_registry, ["name"], {"version": lambda new: new["version"]})
                connection.execute(stamp, [{"name": table.name, "version": VERSION}])
                log.info("table %s has schema version %d", table.name, VERSION)
    finally:
        dialect.unlock_schema(connection)


def plan(connection: Connection, tables: Sequence[Table]) -> dict[str, list[str]]:
    """Returns what `make` would do, table by table; for a table that is missing, as SQL. Only reads."""
    if not tables:
        return {}
    dialect = connection.dialect
    plans = {str(_registry.name): [str(CreateTable(_registry, if_not_exists=True).compile(dialect=dialect)).strip()]}
    for table in tables:
        if sa.inspect(connection).has_table(table.name):
            plans[str(table.name)] = [f"-- table {table.name} is completed by `homing init`"]
            continue
        stamp = _registry.insert().values(name=table.name, version=VERSION)
        stamped = stamp.compile(dialect=dialect, compile_kwargs={"literal_binds": True})
        made = (
            text if isinstance(text, str) else text.compile(dialect=dialect) for text in _creating(connection, table)
        )
        plans[str(table.name)] = [str(text).strip() for text in (*made, stamped)]
    return plans


def _creating(connection: Connection, table: Table) -> Iterator[ExecutableDDLElement | str]:
    """The statements that make a table."""
    yield CreateTable(table)
    for index in sorted(table.indexes, key=lambda index: str(index.name)):
        yield CreateIndex(index)
    yield from _tuning(connection, table)


def _tuning(connection: Connection, table: Table) -> Iterator[str]:
    """The statements that make a table fit for its use, however it was made."""
    if connection.dialect.name != "postgresql":
        return
    quote = connection.dialect.identifier_preparer.quote
    if "lock_token" in table.c and "sequence" in table.primary_key.c:
        yield f"ALTER TABLE {quote(table.name)} SET ({', '.join(_TUNING)})"
        for name in (f"{table.name}_pkey", f"{table.name}_id_key"):
            yield f"ALTER INDEX {quote(name)} SET (fillfactor = 40)"
    if DAYS in table.info:
        yield from archive_days.statements(
            table, str(connection.execute(sa.select(sa.func.current_schema())).scalar_one())
        )


def _make(connection: Connection, table: Table) -> None:
    inspector = sa.inspect(connection)
    if not inspector.has_table(table.name):
        for statement in _creating(connection, table):
            connection.exec_driver_sql(statement) if isinstance(statement, str) else connection.execute(statement)
        return
    there = {column["name"] for column in inspector.get_columns(table.name)}
    for column in table.c:
        if column.name not in there:
            _add(connection, table, column)
    indexes = {index["name"] for index in inspector.get_indexes(table.name)}
    for index in table.indexes:
        if index.name not in indexes:
            connection.execute(CreateIndex(index))
    for statement in _tuning(connection, table):
        connection.exec_driver_sql(statement)


def _add(connection: Connection, table: Table, column: Column[Any]) -> None:
    name = connection.dialect.identifier_preparer.quote(table.name)
    definition = CreateColumn(column).compile(dialect=connection.dialect)
    connection.exec_driver_sql(f"ALTER TABLE {name} ADD COLUMN {definition}")


def identity_of(connection: Connection, table: str) -> str:
    """The identity of this table, which is the default of a column; empty if the table does not exist."""
    inspector = sa.inspect(connection)
    columns = inspector.get_columns(table) if inspector.has_table(table) else ()
    found = [_IDENTITY.search(str(column["default"])) for column in columns if column["name"] == "table_id"]
    return found[0][0] if found and found[0] else ""
