"""Making the tables, and bringing those of an older version up to date. Forward only, and safe for two at once."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Column, MetaData, Table
from sqlalchemy.engine import Connection
from sqlalchemy.schema import CreateColumn, CreateIndex, CreateTable, ExecutableDDLElement

from homing.errors import ConfigurationError
from homing.stores.sql import days
from homing.stores.sql.dialects import Dialect
from homing.stores.sql.schema import DAYS, IDENTITY, NO_IDENTITY, WAS, registry_table

log = logging.getLogger(__name__)

#: The schema this code reads and writes. 1: version 0.1, without a registry. 2: columns and indexes of the full store.
#: 3: the ledger's rows are of a message, no longer of an id. 4: every table of messages has an identity.
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


def is_current(connection: Connection, table: Table) -> bool:
    """Whether the table is there in this version, with every column it should have. Only reads."""
    inspector = sa.inspect(connection)
    if not inspector.has_table(_registry.name):
        return False
    version = connection.execute(sa.select(_registry.c.version).where(_registry.c.name == table.name)).scalar()
    if version is not None and version > VERSION:
        raise ConfigurationError(
            f"table {table.name} has version {version}, made by a newer Homing than this one, which knows {VERSION}"
        )
    if version != VERSION or not inspector.has_table(table.name):
        return False
    there = {column["name"] for column in inspector.get_columns(table.name)}
    indexes = {index["name"] for index in inspector.get_indexes(table.name)}
    if DAYS in table.info and not days.is_there(connection, table):
        return False
    return there >= set(table.c.keys()) and indexes >= {index.name for index in table.indexes}


def bring_up(connection: Connection, dialect: Dialect, tables: Sequence[Table]) -> None:
    """Makes what is missing of these tables. Others who do the same meanwhile wait, and then find it done."""
    dialect.lock_schema(connection)
    try:
        connection.execute(CreateTable(_registry, if_not_exists=True))
        for table in tables:
            if not is_current(connection, table):
                _make(connection, table)
                stamp = dialect.upsert(_registry, ["name"], {"version": lambda new: new["version"]})
                connection.execute(stamp, [{"name": table.name, "version": VERSION}])
                log.info("table %s has schema version %d", table.name, VERSION)
    finally:
        dialect.unlock_schema(connection)


def plan(connection: Connection, tables: Sequence[Table]) -> dict[str, list[str]]:
    """What `bring_up` would do, table by table, in SQL as far as they are made anew. Only reads."""
    if not tables:
        return {}
    dialect = connection.dialect
    plans = {str(_registry.name): [str(CreateTable(_registry, if_not_exists=True).compile(dialect=dialect)).strip()]}
    for table in tables:
        if sa.inspect(connection).has_table(table.name):
            plans[str(table.name)] = [f"-- table {table.name} is brought to version {VERSION} by `homing init`"]
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
        yield from days.statements(table, str(connection.execute(sa.select(sa.func.current_schema())).scalar_one()))


def _make(connection: Connection, table: Table) -> None:
    inspector = sa.inspect(connection)
    if not inspector.has_table(table.name):
        for statement in _creating(connection, table):
            connection.exec_driver_sql(statement) if isinstance(statement, str) else connection.execute(statement)
        return
    there = {column["name"]: str(column["default"]) for column in inspector.get_columns(table.name)}
    quote = connection.dialect.identifier_preparer.quote
    for column in table.c:
        if IDENTITY in column.info:
            _give_identity(connection, column, there.get(column.name))
        elif column.info.get(WAS) in there:
            before, now = quote(column.info[WAS]), quote(column.name)
            connection.exec_driver_sql(f"ALTER TABLE {quote(table.name)} RENAME COLUMN {before} TO {now}")
        elif column.name not in there:
            _add(connection, table, column)
    key = [column.name for column in table.primary_key]
    if set(inspector.get_pk_constraint(table.name)["constrained_columns"]) != set(key):
        _change_key(connection, table, key)
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
    return found[0][0] if found and found[0] else NO_IDENTITY


def _give_identity(connection: Connection, column: Column[Any], default: str | None) -> None:
    """Gives a table that was made without an identity its own, for messages to come: what it holds is known elsewhere
    as it was. `default` is the column's now, None if the column does not exist."""
    table, quote = column.table, connection.dialect.identifier_preparer.quote
    assert isinstance(table, Table)
    if default is not None and _IDENTITY.search(default):
        return
    if connection.dialect.name == "sqlite":
        # It cannot change a default. No other transaction sees the table in between.
        _add(connection, table, column)
        connection.execute(table.update().values({column: NO_IDENTITY}))
        return
    if default is None:  # MySQL may have come no further the last time
        _add(connection, table, Table("any", MetaData(), _without_identity(column)).c[column.name])
    name, identity = quote(table.name), column.server_default.arg  # type: ignore[union-attr]
    connection.exec_driver_sql(f"ALTER TABLE {name} ALTER COLUMN {quote(column.name)} SET DEFAULT '{identity}'")


def _without_identity(column: Column[Any]) -> Column[Any]:
    return Column(column.name, column.type, nullable=False, server_default=NO_IDENTITY)


def _change_key(connection: Connection, table: Table, key: Sequence[str]) -> None:
    """Gives a table that is there its primary key of this version. All or nothing, on each of the databases."""
    quote = connection.dialect.identifier_preparer.quote
    name, columns = quote(table.name), ", ".join(map(quote, key))
    if connection.dialect.name == "postgresql":
        old = quote(f"{table.name}_pkey")
        connection.exec_driver_sql(f"ALTER TABLE {name} DROP CONSTRAINT {old}, ADD PRIMARY KEY ({columns})")
    elif connection.dialect.name == "sqlite":
        # It cannot change a key. The indexes go with the old table, and are made again after this.
        before = f"{table.name}__before"
        connection.exec_driver_sql(f"ALTER TABLE {name} RENAME TO {quote(before)}")
        connection.execute(CreateTable(table))
        copied: list[Any] = [sa.column(column.name) for column in table.c]
        rows = sa.select(*copied).select_from(sa.table(before))
        connection.execute(table.insert().from_select(list(table.c), rows))
        connection.exec_driver_sql(f"DROP TABLE {quote(before)}")
    else:
        connection.exec_driver_sql(f"ALTER TABLE {name} DROP PRIMARY KEY, ADD PRIMARY KEY ({columns})")
