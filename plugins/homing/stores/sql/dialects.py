"""Where PostgreSQL, SQLite and MySQL (or MariaDB) differ: each in a Dialect."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Table
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.engine import URL, Connection

from homing.errors import ConfigurationError, MissingExtraError, StoreUnavailableError
from homing.message import encode_json
from homing.portions import portions, text_bytes

# scheme -> (the dialect and driver meant by it, the driver's package, the extra that brings it)
_DRIVERS = {
    "sqlite": ("sqlite+pysqlite", "sqlite3", ""),
    "postgresql": ("postgresql+psycopg", "psycopg", "postgres"),
    "postgres": ("postgresql+psycopg", "psycopg", "postgres"),
    "mysql": ("mysql+pymysql", "pymysql", "mysql"),
    "mariadb": ("mysql+pymysql", "pymysql", "mysql"),
}

#: The number of the advisory lock for changing tables: "homing".
SCHEMA_LOCK = 0x686F6D696E67
SCHEMA_PATIENCE = 60  # seconds MySQL waits for the lock for changing tables; the others have their own limits


def with_driver(url: URL) -> URL:
    """Returns the URL with the driver that the SQL store uses.

    Raises ConfigurationError if the URL asks for another driver, and MissingExtraError if it is not installed.
    """
    scheme, _, driver = url.drivername.partition("+")
    full, package, extra = _DRIVERS[scheme]
    if driver and driver != full.partition("+")[2]:
        raise ConfigurationError(f"the SQL store speaks to {scheme} through {full}://, not through {url.drivername}://")
    if find_spec(package) is None:
        raise MissingExtraError(f'{scheme}:// needs the package {package}: pip install "homing[{extra}]"')
    return url.set(drivername=full)


class Dialect:
    """How PostgreSQL does it. The other databases have subclasses, which override what is different there."""

    #: How many ids go into one statement.
    chunk = 10_000
    #: How many bytes one text may have, and what the server calls this limit.
    most_at_once, called = 900_000_000, "the longest text of a database"
    #: Whether the driver writes texts into the statement, where they need quoting.
    quotes = False
    #: Whether rows are locked one by one; otherwise only one process writes at a time.
    locks_rows = True
    #: Whether a table can be cut into parts that are dropped whole.
    drops_partitions = True
    #: Whether a text column contains only texts, whatever writes to it.
    keeps_types = True
    #: Whether a transaction may see what others have not committed yet.
    reads_uncommitted = False
    #: Whether the store can ask which rights the database's user has.
    tells_rights = True

    def insert_new(self, table: Table) -> sa.Insert:
        """Returns an insert that leaves out rows whose id is there already."""
        return postgresql.insert(table).on_conflict_do_nothing(index_elements=["id"])

    def upsert(self, table: Table, keys: Sequence[str], changed: Mapping[str, Any] | None = None) -> sa.Insert:
        """Returns an insert that changes the row instead where one with the same `keys` is there already.

        `changed` says what to change: it maps each column to a function that takes the row which was to be inserted,
        and returns the new value. Without it, all columns other than the keys get the values of that row.
        """
        insert = postgresql.insert(table)
        return insert.on_conflict_do_update(index_elements=keys, set_=_changes(table, keys, insert.excluded, changed))

    def upsert_many(self, table: Table, keys: Sequence[str], changed: Mapping[str, Any]) -> sa.Insert:
        """Returns such a statement for many rows at once. `write_many` runs it."""
        # As one JSON text: otherwise the driver would write every value on its own, and the server answer every row.
        given = sa.func.json_to_recordset(sa.cast(sa.bindparam("rows", type_=sa.Text), postgresql.JSON))
        rows = given.table_valued(*(sa.column(column.name, column.type) for column in table.c))
        insert = postgresql.insert(table).from_select(
            [column.name for column in table.c], sa.select(rows.render_derived(with_types=True))
        )
        return insert.on_conflict_do_update(index_elements=keys, set_=_changes(table, keys, insert.excluded, changed))

    def write_many(
        self, connection: Connection, statement: sa.Insert, keys: Sequence[str], rows: Sequence[Mapping[str, Any]]
    ) -> None:
        """Runs a statement of `upsert_many` for these rows, in their order. Each row has all columns."""
        for part in _without_repeats(rows, keys):
            # The server takes no text of a gigabyte, and would die of several of half of that.
            for portion in portions(part, _bytes_of):
                connection.execute(statement, {"rows": encode_json(portion)})

    def among(self, column: sa.ColumnElement[Any], values: Sequence[Any]) -> sa.ColumnElement[bool]:
        """A condition: the column has one of these values. There may be `chunk` values at most."""
        return self.is_in(column, sa.bindparam("among", self.listed(column, values), unique=True))

    def is_in(self, column: sa.ColumnElement[Any], parameter: sa.BindParameter[Any]) -> sa.ColumnElement[bool]:
        """A condition: the column has one of the values of a parameter, which gets them as `listed` writes them."""
        kind = sa.BigInteger if isinstance(column.type, sa.Integer) else sa.Text
        return column == sa.any_(sa.cast(parameter, postgresql.ARRAY(kind)))

    def listed(self, column: sa.ColumnElement[Any], values: Sequence[Any]) -> Any:
        # Numbers go as one text, which the server reads faster than the driver writes an array.
        return "{" + ",".join(map(str, values)) + "}" if isinstance(column.type, sa.Integer) else list(values)

    def lock_free_rows(self, statement: sa.Select[Any]) -> sa.Select[Any]:
        """Returns a statement that locks the rows, and leaves out those that another transaction has locked."""
        return statement.with_for_update(skip_locked=True)

    def begin(self, connection: Connection) -> None:
        """Begins the transaction on a caller's connection if the driver has not: a savepoint needs one around it."""

    def lock_schema(self, connection: Connection) -> None:
        """Keeps every other process from changing tables until the transaction ends, or `unlock_schema`."""
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(SCHEMA_LOCK)))

    def unlock_schema(self, connection: Connection) -> None:
        """Lets other processes change tables again, where changing a table ends the transaction and not the lock."""


class RowByRow(Dialect):
    """A database whose driver takes many rows in one call."""

    def upsert_many(self, table: Table, keys: Sequence[str], changed: Mapping[str, Any]) -> sa.Insert:
        return self.upsert(table, keys, changed)

    def write_many(
        self, connection: Connection, statement: sa.Insert, keys: Sequence[str], rows: Sequence[Mapping[str, Any]]
    ) -> None:
        write_rows(connection, statement, list(rows[0]), rows)


class Sqlite(RowByRow):
    locks_rows = False
    tells_rights = False
    drops_partitions = False
    keeps_types = False

    def insert_new(self, table: Table) -> sa.Insert:
        return sqlite.insert(table).on_conflict_do_nothing(index_elements=["id"])

    def upsert(self, table: Table, keys: Sequence[str], changed: Mapping[str, Any] | None = None) -> sa.Insert:
        insert = sqlite.insert(table)
        return insert.on_conflict_do_update(index_elements=keys, set_=_changes(table, keys, insert.excluded, changed))

    def is_in(self, column: sa.ColumnElement[Any], parameter: sa.BindParameter[Any]) -> sa.ColumnElement[bool]:
        return column.in_(sa.select(sa.literal_column("value")).select_from(sa.func.json_each(parameter)))

    def listed(self, column: sa.ColumnElement[Any], values: Sequence[Any]) -> Any:
        return json.dumps(list(values))

    def lock_free_rows(self, statement: sa.Select[Any]) -> sa.Select[Any]:
        return statement

    def begin(self, connection: Connection) -> None:
        # Python's driver begins one before the first statement that changes something, and only then.
        connection.exec_driver_sql("DELETE FROM homing__tables WHERE 0")

    def lock_schema(self, connection: Connection) -> None:
        """The transaction has the database for itself already."""


class Mysql(RowByRow):
    chunk = 1_000
    # Until the server says what its own is.
    most_at_once, called = 16 * 2**20, "max_allowed_packet, which can be raised,"
    quotes = True
    tells_rights = False
    drops_partitions = False
    reads_uncommitted = True

    def insert_new(self, table: Table) -> sa.Insert:
        # Not INSERT IGNORE: it would also shorten values that are too long, without an error. If the row that is there
        # already has another id, a unique index that is not ours has refused the new one. To leave the new one out
        # would lose a message. So its id is set to NULL, which the server refuses with an error.
        insert = mysql.insert(table)
        same = sa.case((table.c.id == insert.inserted.id, table.c.id), else_=sa.null())
        return insert.on_duplicate_key_update(id=same)

    def upsert(self, table: Table, keys: Sequence[str], changed: Mapping[str, Any] | None = None) -> sa.Insert:
        insert = mysql.insert(table)
        # MySQL assigns from left to right, and each assignment sees those before it.
        changes = _changes(table, keys, insert.inserted, changed)
        return insert.on_duplicate_key_update(list(changes.items()))

    def is_in(self, column: sa.ColumnElement[Any], parameter: sa.BindParameter[Any]) -> sa.ColumnElement[bool]:
        return column.in_(sa.bindparam(parameter.key, parameter.value, expanding=True, unique=parameter.unique))

    def listed(self, column: sa.ColumnElement[Any], values: Sequence[Any]) -> Any:
        return list(values)

    def lock_schema(self, connection: Connection) -> None:
        if connection.execute(sa.select(sa.func.get_lock("homing_schema", SCHEMA_PATIENCE))).scalar() != 1:
            raise StoreUnavailableError(
                f"another process was still changing its tables after {SCHEMA_PATIENCE} s; try again"
            )

    def unlock_schema(self, connection: Connection) -> None:
        connection.execute(sa.select(sa.func.release_lock("homing_schema")))


DIALECTS: Mapping[str, Dialect] = {"postgresql": Dialect(), "sqlite": Sqlite(), "mysql": Mysql(), "mariadb": Mysql()}


def _bytes_of(row: Mapping[str, Any]) -> int:
    return sum(text_bytes(value) for value in row.values() if type(value) is str)


def _changes(table: Table, keys: Sequence[str], new: Any, changed: Mapping[str, Any] | None) -> dict[str, Any]:
    if changed is None:
        return {column.name: new[column.name] for column in table.c if column.name not in keys}
    return {name: change(new) for name, change in changed.items()}


def write_rows(
    connection: Connection, statement: sa.Insert, names: Sequence[str], rows: Sequence[Mapping[str, Any]]
) -> None:
    """Inserts these columns of these rows. A column that a row does not have is NULL."""
    text, order = _compiled(statement, connection.dialect, tuple(names))
    if order is None:
        connection.execute(statement, [{name: row.get(name) for name in names} for row in rows])
    else:
        # The driver gets its tuples at once: SQLAlchemy would look at every value in between.
        connection.exec_driver_sql(text, [tuple([row.get(name) for name in order]) for row in rows])


@lru_cache(maxsize=100)
def _compiled(statement: sa.Insert, dialect: sa.Dialect, names: tuple[str, ...]) -> tuple[str, Sequence[str] | None]:
    """Returns the text of the statement, and the order of its values if the driver takes them by position."""
    compiled = statement.compile(dialect=dialect, column_keys=names)
    return str(compiled), getattr(compiled, "positiontup", None)


def _without_repeats(rows: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> Iterator[list[Mapping[str, Any]]]:
    """Yields the rows in parts, so that no part has the same key twice: PostgreSQL refuses to change a row twice in one
    statement."""
    part: list[Mapping[str, Any]] = []
    seen: set[tuple[Any, ...]] = set()
    for row in rows:
        key = tuple([row[name] for name in keys])
        if key in seen:
            yield part
            part, seen = [], set()
        part.append(row)
        seen.add(key)
    if part:
        yield part
