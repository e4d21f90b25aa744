"""Connections: how each database is set up for durability, and how its errors become ours."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, TypeVar

import sqlalchemy
from sqlalchemy import Table
from sqlalchemy.engine import URL, Connection, Engine
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, SQLAlchemyError

from homing.errors import StoreError, StoreUnavailableError
from homing.stores.sql import schema

NANOSECONDS = 1_000_000_000
IN_CHUNK = 500  # ids in one IN (...): databases limit the number of parameters

Item = TypeVar("Item")

_READING = "homing_reading"
_BUSY_TIMEOUT = 30.0  # seconds a writer waits for another process's transaction


class Database:
    """One database as one store sees it: transactions that write, transactions that read, the schema made once."""

    def __init__(self, url: URL, name: str) -> None:
        self._engine = _make_engine(url)
        self._reader = self._engine.execution_options(**{_READING: True})
        self._name = name
        self._missing: list[Table] = []

    def require(self, *tables: Table) -> None:
        """These tables are made, where they are missing, before the next transaction."""
        self._missing.extend(tables)

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction that writes: committed at the end of the block, or nothing of it happened."""
        with self._translated("write to"):
            self._make_schema()
            with self._engine.begin() as connection:
                yield connection

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A transaction that only reads and holds nobody up."""
        with self._translated("read from"):
            self._make_schema()
            with self._reader.begin() as connection:
                yield connection

    def close(self) -> None:
        self._engine.dispose()

    def _make_schema(self) -> None:
        missing = list(self._missing)
        if not missing:
            return
        with self._engine.begin() as connection:
            for table in missing:
                schema.create(connection, table)
        # Removed only now that they are there, one by one: another thread may have asked for more meanwhile.
        for table in missing:
            if table in self._missing:
                self._missing.remove(table)

    @contextmanager
    def _translated(self, doing: str) -> Iterator[None]:
        try:
            yield
        except (OperationalError, InterfaceError) as error:
            raise StoreUnavailableError(f"cannot {doing} store {self._name!r}: {_cause(error)}") from error
        except SQLAlchemyError as error:
            raise StoreError(f"cannot {doing} store {self._name!r}: {_cause(error)}") from error


def chunks(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """The items, `size` at a time."""
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk


def _cause(error: SQLAlchemyError) -> str:
    """The driver's own words: SQLAlchemy's text would carry the parameters, and with them payloads."""
    return str(error.orig) if isinstance(error, DBAPIError) else type(error).__name__


def _make_engine(url: URL) -> Engine:
    # Parameters are payloads: they must not reach a log through an error text.
    engine = sqlalchemy.create_engine(url, connect_args={"timeout": _BUSY_TIMEOUT}, hide_parameters=True)
    sqlalchemy.event.listen(engine, "connect", _set_up_sqlite)
    sqlalchemy.event.listen(engine, "begin", _begin_sqlite)
    return engine


def _set_up_sqlite(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # transactions are begun below, not guessed by the driver
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    # A writer takes the write lock at once: a transaction that reads first and writes later could be refused.
    reading = connection.get_execution_options().get(_READING, False)
    connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")
