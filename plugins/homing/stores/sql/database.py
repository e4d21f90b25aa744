"""Connections: how each database is set up for durability, and how its errors become ours."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Any, TypeVar
from urllib.parse import quote

import sqlalchemy
from sqlalchemy import Table
from sqlalchemy.engine import URL, Connection, Engine
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.orm import Session, scoped_session
from sqlalchemy.pool import PoolProxiedConnection

from homing.errors import ConfigurationError, MissingExtraError, StoreError, StoreUnavailableError
from homing.stores.sql import patience, upgrade
from homing.stores.sql.dialects import DIALECTS, Dialect, with_driver
from homing.stores.sql.schema import NowInNanoseconds

log = logging.getLogger(__name__)

NANOSECONDS = 1_000_000_000

Item = TypeVar("Item")
Result = TypeVar("Result")

_READING = "homing_reading"
_TRIES = 5  # of a transaction that the database itself asks to do again
# Smaller differences between the database's clock and ours are left alone: measuring them is not exact either.
_TOLERATED_SKEW = NANOSECONDS // 20

# What databases say when two transactions wait for each other, or one was overtaken.
_AGAIN = {"40P01", "40001", "1213", "1020"}


class Database:
    """One database as one store sees it: transactions that write, transactions that read, the schema made once.

    With `read_only` the database itself refuses to write, and no table is made.
    """

    def __init__(self, url: URL, name: str, clock: Callable[[], int] | None = None, *, read_only: bool = False) -> None:
        url = with_driver(url)
        self._engine = _make_engine(url, read_only)
        self._read_only = read_only
        self._reader = self._engine.execution_options(**{_READING: True})
        self._name = name
        self._missing: list[Table] = []
        self._lock = threading.Lock()
        self._clock = clock or time.time_ns
        self._measures = url.get_backend_name() != "sqlite"  # whose clock is that of this machine
        #: How far the database's clock is ahead of ours; None until it is measured.
        self._skew: int | None = None if self._measures else 0
        self._takes_bytes = False
        if url.get_backend_name() == "sqlite":
            sqlalchemy.event.listen(self._engine, "connect", self._set_up_text)
        self.dialect: Dialect = DIALECTS[url.get_backend_name()]

    def now(self) -> int:
        """The time all consumers of this database agree on: the database's own, where it is another machine's."""
        if self._skew is None:
            self.read(self.measure_clock)
        return self._clock() + (self._skew or 0)

    def measure_clock(self, connection: Connection) -> None:
        """Compares the database's clock with this machine's."""
        if not self._measures:
            self._skew = 0
            return
        before = self._clock()
        theirs = int(connection.execute(sqlalchemy.select(NowInNanoseconds())).scalar_one())
        skew = theirs - (before + self._clock()) // 2
        self._skew = skew if abs(skew) > _TOLERATED_SKEW else 0

    def require(self, *tables: Table) -> None:
        """These tables are made, where they are missing, before the next transaction."""
        self._missing.extend(tables)

    def write(self, work: Callable[[Connection], Result]) -> Result:
        """Runs `work` in a transaction: committed when it returns, or nothing of it happened.

        `work` may run again: after a deadlock, once when the connection turned out to be lost before the commit, and
        once when it came upon a text that is none.
        """
        with self.translated("write to"):
            self._make_schema()
            for attempt in range(_TRIES):
                ready_to_commit = False
                try:
                    with self._engine.begin() as connection:
                        result = work(connection)
                        ready_to_commit = True
                except DBAPIError as error:
                    lost = error.connection_invalidated and not ready_to_commit and attempt == 0
                    if attempt + 1 == _TRIES or not (lost or _asks_again(error) or self._can_take_bytes(error)):
                        raise
                    time.sleep(0 if lost else 0.001 * 2**attempt)
                else:
                    return result
        raise AssertionError("the last try returns or raises")

    def read(self, work: Callable[[Connection], Result]) -> Result:
        """Runs `work` in a transaction that only reads and holds nobody up."""
        with self.translated("read from"):
            self._make_schema()
            try:
                with self._reader.begin() as connection:
                    return work(connection)
            except DBAPIError as error:
                if not (error.connection_invalidated or self._can_take_bytes(error)):
                    raise
            with self._reader.begin() as connection:
                return work(connection)

    def _can_take_bytes(self, error: DBAPIError) -> bool:
        """Whether this was a text in SQLite that is not UTF-8, and the next try will get it as bytes."""
        if self._takes_bytes or "Could not decode to UTF-8" not in str(error.orig):
            return False
        log.warning("store %r holds a text that is not UTF-8: reading it as bytes from now on", self._name)
        self._takes_bytes = True
        self._engine.dispose()
        return True

    def _set_up_text(self, connection: Any, _record: Any) -> None:
        # Only once it is needed: the driver is faster at texts that are what they should be.
        if self._takes_bytes:
            connection.text_factory = _text_or_bytes

    @contextmanager
    def within(self, transaction: Any) -> Iterator[Connection]:
        """The caller's own transaction: a SQLAlchemy Connection or Session. What fails inside undoes only itself."""
        connection = _connection_of(transaction)
        with self.translated("write to"):
            if self.dialect.locks_rows and connection.dialect.detect_autocommit_setting(connection.connection):
                raise ConfigurationError(
                    f"store {self._name!r} cannot take part in your transaction: in AUTOCOMMIT a connection has none"
                )
            if not self.dialect.locks_rows and self._missing:
                # The caller may have the database for himself: anybody else would wait for him in vain.
                upgrade.bring_up(connection, self.dialect, list(self._missing))
            else:
                self._make_schema()
            self.dialect.begin(connection)
            with connection.begin_nested():
                yield connection

    @contextmanager
    def unwaited(self, connection: Connection) -> Iterator[bool]:
        """What is executed inside is sent at once and waited for at the end of the block, where the driver can do that:
        its errors come then, and it has no results. Whether it can."""
        driver = connection.dialect.loaded_dbapi
        if connection.dialect.driver != "psycopg" or not driver.Pipeline.is_supported():
            yield False
            return
        open_one: Any = connection.connection.driver_connection
        with driver_errors(connection), open_one.pipeline() as sent:
            try:
                yield True
                sent.sync()
            except BaseException as error:
                if not isinstance(error, Exception):
                    # Such as the end of a task: the answer will not be waited for, so nobody can use this connection.
                    connection.invalidate(error)
                raise

    def connect_apart(self) -> PoolProxiedConnection:
        """A connection outside the pool, with the driver's own in its `dbapi_connection`; whoever asked closes it."""
        with self.translated("listen to"):
            connection = self._engine.raw_connection()
            connection.detach()
            return connection

    def close(self) -> None:
        self._engine.dispose()

    def _make_schema(self) -> None:
        if not self._missing:
            return
        with self._lock:
            missing = list(self._missing)
            with self._reader.begin() as connection:
                outdated = [table for table in missing if not upgrade.is_current(connection, table)]
            if outdated and self._read_only:
                raise StoreError(
                    f"store {self._name!r} has no table {outdated[0].name} of this version, and is only read here: use "
                    "it once where it may be written"
                )
            if outdated:
                with self._engine.begin() as connection:
                    upgrade.bring_up(connection, self.dialect, outdated)
            # Removed only now that they are there, one by one: another thread may have asked for more meanwhile.
            for table in missing:
                self._missing.remove(table)

    @contextmanager
    def translated(self, doing: str) -> Iterator[None]:
        """The database's errors, in our words."""
        try:
            yield
        except (OperationalError, InterfaceError) as error:
            raise StoreUnavailableError(f"cannot {doing} store {self._name!r}: {_cause(error)}") from error
        except SQLAlchemyError as error:
            raise StoreError(f"cannot {doing} store {self._name!r}: {_cause(error)}") from error
        except (OverflowError, UnicodeEncodeError) as error:
            # Drivers raise these as they are, for numbers and texts that no database holds.
            raise StoreError(f"cannot {doing} store {self._name!r}: it holds no such value: {error}") from error


@contextmanager
def driver_errors(connection: Connection) -> Iterator[None]:
    """Turns errors of the driver, when it is used directly, into what SQLAlchemy makes of them."""
    base, open_one = connection.dialect.loaded_dbapi.Error, connection.connection.dbapi_connection
    try:
        yield
    except base as error:
        lost = connection.dialect.is_disconnect(error, open_one, None)
        wrapped = DBAPIError.instance(None, None, error, base, connection_invalidated=lost)
        if lost:
            connection.invalidate(error)
        raise wrapped from error


def fetch(
    connection: Connection, statement: sqlalchemy.Select[Any], values: Mapping[str, Any] | None = None
) -> list[tuple[Any, ...]]:
    """The rows as the driver gives them, which is as they are for our column types, and much faster."""
    result = connection.execute(statement, values or {})
    try:
        with driver_errors(connection):
            return list(result.cursor.fetchall())
    finally:
        result.close()


def _connection_of(transaction: Any) -> Connection:
    if isinstance(transaction, Connection):
        return transaction
    if isinstance(transaction, Session | scoped_session):
        return transaction.connection()
    raise ConfigurationError(
        f"transaction= takes a SQLAlchemy Connection or Session, not a {type(transaction).__name__}"
    )


def _text_or_bytes(raw: bytes) -> str | bytes:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def chunks(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """The items, `size` at a time."""
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk


def _cause(error: SQLAlchemyError) -> str:
    """The driver's own words: SQLAlchemy's text would carry the parameters, and with them payloads."""
    return str(error.orig) if isinstance(error, DBAPIError) else type(error).__name__


def _asks_again(error: DBAPIError) -> bool:
    code = getattr(error.orig, "sqlstate", None) or (error.orig.args[0] if error.orig and error.orig.args else None)
    return str(code) in _AGAIN


def _make_engine(url: URL, read_only: bool) -> Engine:
    backend = url.get_backend_name()
    # Parameters are payloads: they must not reach a log through an error text.
    options: dict[str, Any] = {"hide_parameters": True}
    if backend == "sqlite":
        options["connect_args"] = {"timeout": patience.BUSY_TIMEOUT}
        if read_only:
            # A file that is not there is not made either.
            url = url.set(database=f"file:{quote(str(url.database))}").update_query_dict({"mode": "rw", "uri": "true"})
    else:
        # Anything stricter locks gaps between rows, and consumers would wait for each other.
        options["isolation_level"] = "READ COMMITTED"
    if backend == "mysql":
        options["connect_args"] = {"charset": "utf8mb4"}
    try:
        engine = sqlalchemy.create_engine(url, **options)
    except ImportError as error:
        raise MissingExtraError(f"the database driver for {backend} cannot be loaded: {error}") from error
    if read_only:
        sqlalchemy.event.listen(engine, "connect", _refuse_writing(backend))
    if backend == "sqlite":
        if not read_only:
            sqlalchemy.event.listen(engine, "do_connect", _make_private_file(url))
            sqlalchemy.event.listen(engine, "connect", _set_up_sqlite)
        sqlalchemy.event.listen(engine, "begin", _begin_sqlite)
    elif backend == "mysql":
        sqlalchemy.event.listen(engine, "connect", _set_up_mysql)
        sqlalchemy.event.listen(engine, "begin", patience.limit_mysql)
    else:
        sqlalchemy.event.listen(engine, "connect", _set_up_postgresql)
        sqlalchemy.event.listen(engine, "begin", patience.limit_postgresql)
    return engine


#: How each database is told to write nothing on a connection.
_READ_ONLY = {
    "sqlite": "PRAGMA query_only = ON",
    "postgresql": "SET default_transaction_read_only = on",
    "mysql": "SET SESSION TRANSACTION READ ONLY",
}


def _refuse_writing(backend: str) -> Callable[[Any, Any], None]:
    def set_up(connection: Any, _record: Any) -> None:
        if backend == "sqlite":
            connection.isolation_level = None
        cursor = connection.cursor()
        cursor.execute(_READ_ONLY[backend])
        cursor.close()
        connection.commit()

    return set_up


def _make_private_file(url: URL) -> Callable[..., None]:
    """Before SQLite makes a file that everybody can read. What it puts beside it gets the same mode."""

    def make(*_: Any) -> None:
        with suppress(OSError):  # it is there, or SQLite will say why it cannot be made
            os.close(os.open(str(url.database), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))

    return make


def _set_up_sqlite(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # transactions are begun below, not guessed by the driver
    cursor = connection.cursor()
    # Of a database that is new. Seven messages of 1 KiB fill a page; in the usual 4 KiB there would be room for three.
    cursor.execute("PRAGMA page_size=8192")
    if cursor.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    # A message's page changes when it is stored, claimed and settled: the later it is copied from the log into the
    # database, the less often. So long a log has 16 MiB.
    cursor.execute("PRAGMA wal_autocheckpoint=2000")
    cursor.close()


def _set_up_postgresql(connection: Any, _record: Any) -> None:
    # Our statements walk along indexes and stop early. A table that fills and empties all day has statistics of another
    # hour, by which reading and sorting all of it looks as good; it is not when a million messages wait.
    cursor = connection.cursor()
    # What a discouraged plan is said to cost would make the server compile it, for many times what it takes to run.
    cursor.execute("SET enable_seqscan = off; SET enable_bitmapscan = off; SET jit = off")
    cursor.close()
    connection.commit()


def _set_up_mysql(connection: Any, _record: Any) -> None:
    cursor = connection.cursor()
    # What does not fit is an error, not cut to size; times by the database's clock are in UTC.
    cursor.execute("SET SESSION sql_mode = 'TRADITIONAL', SESSION time_zone = '+00:00'")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    patience.limit_sqlite(connection)
    # A writer takes the write lock at once: a transaction that reads first and writes later could be refused.
    reading = connection.get_execution_options().get(_READING, False)
    connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")
