"""RequiredTables: the tables that a store needs. What is missing of them is made once, before they are first used."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy
from sqlalchemy import Table
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError

from homing.errors import NotPermittedError, StoreError
from homing.stores.sql import tables as sql_tables
from homing.stores.sql.dialects import Dialect
from homing.stores.sql.outages import is_denied
from homing.stores.sql.schema import registry_table


class RequiredTables:
    """Knows which tables are required and not known to be there yet. Thread-safe. `reader` is an engine that reads.

    With `read_only`, no table is made. `patient_engine` makes an engine whose statements may take any time.
    """

    def __init__(
        self, name: str, dialect: Dialect, patient_engine: Callable[[], Engine], *, file: str | None, read_only: bool
    ) -> None:
        """`file` is the path of SQLite's file; None where the database is on a server."""
        self._name = name
        self._dialect = dialect
        self._patient_engine = patient_engine
        self._file = file
        self._read_only = read_only
        self._missing: list[Table] = []
        self._lock = threading.Lock()

    def start_over(self) -> None:
        """In a forked process."""
        self._lock = threading.Lock()

    @property
    def missing(self) -> list[Table]:
        return list(self._missing)

    def add(self, tables: Iterable[Table]) -> None:
        known = {table.name for table in self._missing}
        self._missing.extend(table for table in tables if table.name not in known)

    def leave_out(self, table: Table) -> None:
        self._missing = [each for each in self._missing if each is not table]

    def complete(self, reader: Engine) -> list[str]:
        """Makes what is missing of the required tables. Returns the names of those that lacked something."""
        if not self._missing:
            return []
        with self._lock:
            missing = list(self._missing)
            incomplete = self._complete(reader, missing)
            # Removed only now that they are there, one by one: another thread may have asked for more meanwhile.
            for table in missing:
                self._missing.remove(table)
            return [str(table.name) for table in incomplete]

    def make(self, reader: Engine, table: Table) -> None:
        """Makes this table, or what is missing of it."""
        with self._lock:
            self._complete(reader, [table])

    def plan(self, reader: Engine) -> dict[str, list[str]]:
        """What `complete` would do, table by table, in SQL where they are made anew."""
        with self._looking(reader) as connection:
            return sql_tables.plan(connection, _incomplete(connection, self._missing))

    def incomplete(self, reader: Engine) -> list[str]:
        """The names of the required tables that are missing or incomplete."""
        with self._looking(reader) as connection:
            return [str(table.name) for table in _incomplete(connection, self._missing)]

    def has(self, reader: Engine, table: Table) -> bool:
        """Whether this table is there, in whatever version."""
        with self._looking(reader) as connection:
            return sqlalchemy.inspect(connection).has_table(table.name)

    def names(self, reader: Engine) -> list[str]:
        """The names of the tables of ours that are there, required or not."""
        registry = registry_table()
        with self._looking(reader) as connection:
            if not sqlalchemy.inspect(connection).has_table(registry.name):
                return []
            return sorted(connection.execute(sqlalchemy.select(registry.c.name)).scalars())

    @contextmanager
    def _looking(self, reader: Engine) -> Iterator[Connection]:
        """A connection that makes no file where there is none. The database complains of a missing folder."""
        if self._file is None or Path(self._file).exists() or not Path(self._file).parent.exists():
            with reader.begin() as connection:
                yield connection
            return
        empty = sqlalchemy.create_engine("sqlite://")
        with empty.begin() as connection:
            yield connection
        empty.dispose()

    def _complete(self, reader: Engine, tables: Sequence[Table]) -> list[Table]:
        """Makes those of these tables that are missing, and what others of them lack. Returns which they were."""
        with reader.begin() as connection:
            incomplete = _incomplete(connection, tables)
        if incomplete and self._read_only:
            raise StoreError(
                f"store {self._name!r} has no table {incomplete[0].name}, or not all of it, and is only read here: run "
                "`homing init`, or use it once where it may be written"
            )
        if incomplete:
            self._make(incomplete)
        return incomplete

    def _make(self, incomplete: Sequence[Table]) -> None:
        # Tables of any size may have to be changed, which takes as long as it takes.
        patient = self._patient_engine()
        try:
            with patient.begin() as connection:
                sql_tables.make(connection, self._dialect, incomplete)
        except DBAPIError as error:
            if not is_denied(error):
                raise
            raise NotPermittedError(
                f"store {self._name!r} has no table {incomplete[0].name}, or not all of it, and the database's user "
                f"may not make it: run `homing init` once as a user who may"
            ) from error
        finally:
            patient.dispose()


def _incomplete(connection: Connection, tables: Iterable[Table]) -> list[Table]:
    return [table for table in tables if not sql_tables.is_complete(connection, table)]
