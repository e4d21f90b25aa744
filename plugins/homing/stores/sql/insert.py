"""Stores messages: many at once, all or none, without those whose ids are known."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from sqlalchemy import Table
from sqlalchemy.engine import Connection
from sqlalchemy.exc import IntegrityError

from homing.errors import (
    StoreError,
    StoreUnavailableError,
    TableMissingError,
    TooLargeError,
    UnstorableContentError,
)
from homing.ids import ordered_ids
from homing.message import Message
from homing.row import NANOSECONDS
from homing.size_limit import SizeLimit
from homing.stores.sql.database import Database, chunks, driver_errors
from homing.stores.sql.dialects import write_rows
from homing.stores.sql.header_columns import HeaderColumns, find_fault
from homing.stores.sql.new_row import plain_row, to_row
from homing.stores.sql.notify import notify
from homing.stores.sql.properties import LiveProperties, SqlOptions, SqlProperties

_COPY_FROM = 50  # rows; for fewer, a statement is as fast as PostgreSQL's COPY
_STATEMENTS = 10_000  # rows handed to the driver at once
_BESIDE = 100  # characters of a row at most that is nothing but a content


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
    """Stores messages in one table."""

    def __init__(self, database: Database, table: Table, options: SqlOptions, live: LiveProperties) -> None:
        self._database = database
        self._table = table
        self._options = options
        self._live = live
        self._columns = HeaderColumns(options.column_types, typed=database.dialect.keeps_types)
        self._statement = database.dialect.insert_new(table)

    def store_many(self, contents: Iterable[Any], transaction: Any) -> list[str]:
        """As in the contract of a store. `transaction` is the caller's own, or None."""
        properties = self._live.current(transaction)
        new = self._new_rows(contents, properties)
        if not self._database.dialect.locks_rows:
            new.make()  # before other transactions have to wait for this one
        try:
            if new:
                self._insert(new, properties.duplicate_window, transaction)
        except (StoreUnavailableError, TableMissingError):
            raise
        except StoreError:
            fault = self._fault_of_a_header(new, transaction)
            if fault is None:
                raise
            raise fault from None  # the database's own words may repeat what is in the header
        return [one["id"] for one in new]

    def refusal(self, message: Message) -> TooLargeError | None:
        """The error with which `store_many` would refuse this message for its size; None where it takes it."""
        try:
            made = to_row(message, 0)
            self._size_limit(self._live.current()).check(self._options.name, message.id, message.content, made)
        except TooLargeError as error:
            return error
        return None

    def _new_rows(self, contents: Iterable[Any], properties: SqlProperties) -> NewRows:
        name, parts, columns = self._options.name, self._options.partitions, self._columns
        limit, now, new_ids = self._size_limit(properties), self._database.now(), ordered_ids()
        surely = limit.surely - _BESIDE

        def row(item: Any) -> dict[str, Any]:
            if isinstance(item, Message):
                made = to_row(item, now, partitions=parts, columns=columns)
                limit.check(name, item.id, item.content, made)
            else:
                made = plain_row(next(new_ids), item, now, partitions=parts)
                if len(made["message"]) > surely:
                    limit.check(name, made["id"], item, made)
            return made

        return NewRows(contents, row)

    def _size_limit(self, properties: SqlProperties) -> SizeLimit:
        dialect = self._database.dialect
        return SizeLimit(
            properties.max_message_bytes, self._database.most_at_once, dialect.called, quoted=dialect.quotes
        )

    def _insert(self, new: NewRows, window: float, transaction: Any) -> None:
        if transaction is None:
            self._database.write(lambda connection: self.insert(connection, new, window))
        else:
            with self._database.within(transaction) as connection:
                self.insert(connection, new, window, own=False)

    def _fault_of_a_header(self, new: NewRows, transaction: Any) -> UnstorableContentError | None:
        """Whose header the database refused; see `header_columns`. Nothing is stored."""
        columns = self._options.column_types
        if not columns:
            return None

        def find(connection: Connection) -> UnstorableContentError | None:
            names = sorted({*new.columns(), *columns})
            return find_fault(connection, columns, list(new), partial(self._execute, names=names))

        if transaction is None:
            return self._database.write(find)
        with self._database.within(transaction) as connection:
            return find(connection)

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
        notify(connection, self._table.name, pledged=not own)

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
