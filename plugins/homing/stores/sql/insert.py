"""Stores many rows at once, all or none, and leaves out those whose ids are known."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from sqlalchemy import Table
from sqlalchemy.engine import Connection
from sqlalchemy.exc import IntegrityError

from homing.errors import UnstorableContentError
from homing.message import Message
from homing.row import NANOSECONDS
from homing.stores.sql.database import Database, chunks, driver_errors
from homing.stores.sql.dialects import write_rows
from homing.stores.sql.header_columns import find_fault
from homing.stores.sql.notify import notify

_COPY_FROM = 50  # rows; for fewer, a statement is as fast as PostgreSQL's COPY
_STATEMENTS = 10_000  # rows handed to the driver at once


class CopyEndedError(Exception):
    """Ends a COPY when a row cannot be stored. The server logs its text, so that says nothing about the row."""

    def __init__(self, fault: UnstorableContentError) -> None:
        super().__init__("a message cannot be stored")
        self.fault = fault


class NewRows:
    """The rows to insert for contents or Messages, in order.

    `make` makes each row when it is first asked for; then it is kept. So PostgreSQL takes in one row while the next is
    made.
    """

    def __init__(self, items: Iterable[Any], make: Callable[[Any], dict[str, Any]]) -> None:
        self._items = list(items)
        self._make = make
        self._made: list[dict[str, Any]] = []

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for place, item in enumerate(self._items):
            if place == len(self._made):
                self._made.append(self._make(item))
            yield self._made[place]

    def make(self) -> None:
        """Makes all of them now."""
        for _ in self:
            pass

    def columns(self) -> list[str]:
        """Returns the columns for which a row has a value. All rows made from contents have the same columns."""
        alike = not any(isinstance(item, Message) for item in self._items)
        return sorted(next(iter(self)) if alike else set().union(*self))


class Inserts:
    """Writes rows into one table of messages."""

    def __init__(self, database: Database, table: Table, channel: str) -> None:
        self._database = database
        self._table = table
        self._channel = channel
        self._statement = database.dialect.insert_new(table)

    def insert(self, connection: Connection, new: NewRows, window: float, *, own: bool = True) -> None:
        """Inserts these rows. `own` says that the connection is the store's, not a caller's."""
        if window:
            self.forget(connection, [row["id"] for row in new], window)
        names = new.columns()
        # A row that leaves its priority out means the default, which is not NULL.
        values = [{"priority": 0, **row} for row in new] if "priority" in names else new
        copied = own and len(new) >= _COPY_FROM and connection.dialect.driver == "psycopg"
        if not (copied and self._copy(connection, names, values)):
            self._execute(connection, values, names)
        # The store's own connections ask for it when they are made.
        notify(connection, self._channel, pledged=not own)

    def find_fault(
        self, connection: Connection, new: NewRows, columns: Mapping[str, str]
    ) -> UnstorableContentError | None:
        """Whose header the database refused; see `header_columns`. Nothing is stored."""
        names = sorted({*new.columns(), *columns})
        return find_fault(connection, columns, list(new), partial(self._execute, names=names))

    def _execute(self, connection: Connection, values: Iterable[Mapping[str, Any]], names: list[str]) -> None:
        for chunk in chunks(values, _STATEMENTS):
            write_rows(connection, self._statement, names, chunk)

    def _copy(self, connection: Connection, names: list[str], values: Iterable[Mapping[str, Any]]) -> bool:
        """Whether all rows went in by COPY, which cannot leave out those that are there already."""
        quote = connection.dialect.identifier_preparer.quote
        statement = f"COPY {quote(self._table.name)} ({', '.join(map(quote, names))}) FROM STDIN"
        driver: Any = connection.connection.driver_connection
        try:
            with connection.begin_nested(), driver_errors(connection), driver.cursor().copy(statement) as copy:
                for row in _or_end(values):
                    copy.write_row([row.get(name) for name in names])
        except IntegrityError:
            return False
        except CopyEndedError as ended:
            raise ended.fault from None
        return True

    def forget(self, connection: Connection, ids: list[str], window: float) -> None:
        """Removes finished messages of these ids that were stored before the window, so that they can come again."""
        table, since = self._table, self._database.now() - int(window * NANOSECONDS)
        for chunk in chunks(ids, self._database.dialect.chunk):
            old = self._database.dialect.among(table.c.id, chunk) & (table.c.time_created < since)
            connection.execute(table.delete().where(old, table.c.time_acked.is_not(None)))


def _or_end(values: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    try:
        yield from values
    except UnstorableContentError as fault:
        raise CopyEndedError(fault) from None
