"""Runs transactions, tries one again when the database asks for it, and turns the database's errors into ours."""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from functools import partial
from itertools import islice
from typing import Any, TypeVar

import sqlalchemy
from sqlalchemy import Table
from sqlalchemy.engine import URL, Connection
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.orm import Session, scoped_session
from sqlalchemy.pool import PoolProxiedConnection

from homing.errors import (
    ConfigurationError,
    NotPermittedError,
    StoreError,
    StoreUnavailableError,
    TableMissingError,
    TlsError,
)
from homing.invocation.fork_safety import hang_up, leave_to_parent, let_go_before_fork, start_over_after_fork
from homing.row import NANOSECONDS
from homing.stores.sql import tables as sql_tables
from homing.stores.sql.dialects import DIALECTS, Dialect, with_driver
from homing.stores.sql.durability import FULL, RELAXED, check_callers_sqlite
from homing.stores.sql.engine import READING, descriptor_of, make_engine
from homing.stores.sql.error_text import complaint
from homing.stores.sql.fork_gate import Gate
from homing.stores.sql.outages import asks_again, is_away, is_denied, is_missing_table
from homing.stores.sql.required_tables import RequiredTables
from homing.stores.sql.roles import Right, lacking
from homing.stores.sql.schema import NowInNanoseconds
from homing.stores.sql.tls import tls_fault

log = logging.getLogger(__name__)

#: Seconds after which a database that does not answer is away.
TIMEOUT = 30.0

Item = TypeVar("Item")
Result = TypeVar("Result")

_TRIES = 5  # of a transaction that the database itself asks to do again
# Smaller differences between the database's clock and ours are left alone: measuring them is not exact either.
_TOLERATED_SKEW = NANOSECONDS // 20


class Database:
    """One store's access to its database: runs transactions that write or read, and makes the tables once.

    With `read_only` the database itself refuses to write, and no table is made.
    """

    def __init__(
        self,
        url: URL,
        name: str,
        clock: Callable[[], int] | None = None,
        *,
        read_only: bool = False,
        timeout: float = TIMEOUT,
        durability: str = FULL,
        require_tls: bool = False,
    ) -> None:
        self._url = url = with_driver(url)
        # Reading alone can lose nothing.
        self._relaxed = durability == RELAXED or read_only
        self._make_engine = partial(
            make_engine, url, read_only=read_only, relaxed=self._relaxed, require_tls=require_tls
        )
        self._timeout = timeout
        self._name = name
        self._clock = clock or time.time_ns
        self._measures = url.get_backend_name() != "sqlite"  # whose clock is that of this machine
        # Counts the time between two looks at the database's clock; no one can set this clock.
        self._ticks = clock or (time.monotonic_ns if self._measures else time.time_ns)
        #: How far the database's clock is ahead of that; None until it is measured.
        self._ahead: int | None = None if self._measures else 0
        self._takes_bytes = False
        self.dialect: Dialect = DIALECTS[url.get_backend_name()]
        #: How many bytes the server takes at once.
        self.most_at_once = self.dialect.most_at_once
        self._gate = None if self.dialect.locks_rows else Gate()
        self._tables = RequiredTables(
            name,
            self.dialect,
            partial(self._make_engine, timeout=None),
            file=url.database if self._gate else None,
            read_only=read_only,
        )
        self._connections: weakref.WeakSet[Any] = weakref.WeakSet()
        self._set_up_engine()
        if self._gate is None:
            start_over_after_fork(self)
        else:
            let_go_before_fork(self)

    def _set_up_engine(self) -> None:
        self._engine = self._make_engine(timeout=self._timeout)
        self._reader = self._engine.execution_options(**{READING: True})
        sqlalchemy.event.listen(self._engine, "connect", self._set_up_text if self._gate else self._remember)
        if self.dialect.quotes:
            sqlalchemy.event.listen(self._engine, "connect", self._ask_for_room)

    # -- in a process that forks -------------------------------------------------------------------------------

    def let_go(self) -> None:
        """SQLite's connections are closed before the process forks; see Gate."""
        assert self._gate is not None, "only SQLite lets go"
        if self._gate.shut(2 * self._timeout):
            self._engine.dispose()

    def go_on(self) -> None:
        assert self._gate is not None, "only SQLite lets go"
        self._gate.open()

    def start_over(self) -> None:
        """In the forked process: connections of its own. Leases are in the database, and a process that has their
        tokens may settle them here as well."""
        self._tables.start_over()
        for connection in list(self._connections):
            with suppress(Exception):  # it was closed before
                hang_up(descriptor_of(connection))
        leave_to_parent(self._engine, *self._connections)
        self._connections = weakref.WeakSet()
        if self._gate is not None:
            self._gate.start_over()
        self._set_up_engine()

    def _remember(self, connection: Any, _record: Any) -> None:
        self._connections.add(connection)

    def _inside(self) -> AbstractContextManager[None]:
        """Where transactions are."""
        return nullcontext() if self._gate is None else self._gate.inside()

    # -- time --------------------------------------------------------------------------------------------------

    def now(self) -> int:
        """The time all consumers of this database agree on: the database's own, where it is another machine's."""
        if self._ahead is None:
            self.read(self.measure_clock)
        return self._ticks() + (self._ahead or 0)

    def measure_clock(self, connection: Connection) -> None:
        """Compares the database's clock with this machine's."""
        if not self._measures:
            return
        before, began = self._clock(), self._ticks()
        theirs = int(connection.execute(sqlalchemy.select(NowInNanoseconds())).scalar_one())
        ours, ticks = (before + self._clock()) // 2, (began + self._ticks()) // 2
        self._ahead = (theirs if abs(theirs - ours) > _TOLERATED_SKEW else ours) - ticks

    def require(self, *tables: Table) -> None:
        """These tables are made, where they are missing, before the next transaction."""
        self._tables.add(tables)

    def do_without(self, table: Table) -> None:
        """This table is not required any more, if it could not be made."""
        self._tables.leave_out(table)

    def write(self, work: Callable[[Connection], Result]) -> Result:
        """Runs `work` in a transaction: committed when it returns, or nothing of it happened.

        `work` may run again: after a deadlock, once when the connection turned out to be lost before the commit, and
        once when it came upon a text that is none.
        """
        with self.translated("write to"), self._inside():
            self._tables.complete(self._reader)
            for attempt in range(_TRIES):
                ready_to_commit = False
                try:
                    with self._engine.begin() as connection:
                        result = work(connection)
                        ready_to_commit = True
                except DBAPIError as error:
                    lost = error.connection_invalidated and not ready_to_commit and attempt == 0
                    if attempt + 1 == _TRIES or not (lost or asks_again(error) or self._can_take_bytes(error)):
                        raise
                    time.sleep(0 if lost else 0.001 * 2**attempt)
                else:
                    return result
        raise AssertionError("the last try returns or raises")

    def read(self, work: Callable[[Connection], Result]) -> Result:
        """Runs `work` in a transaction that only reads and blocks no other."""
        with self.translated("read from"), self._inside():
            self._tables.complete(self._reader)
            try:
                with self._reader.begin() as connection:
                    return work(connection)
            except DBAPIError as error:
                if not (error.connection_invalidated or self._can_take_bytes(error)):
                    raise
            with self._reader.begin() as connection:
                return work(connection)

    def read_uncommitted(self, work: Callable[[Connection], Result]) -> Result:
        """Runs `work` in a transaction that reads, and sees what other transactions have not committed yet.

        Only where `dialect.reads_uncommitted`.
        """
        with self.translated("read from"):
            self._tables.complete(self._reader)
            with self._reader.execution_options(isolation_level="READ UNCOMMITTED").begin() as connection:
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

    def _ask_for_room(self, connection: Any, _record: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT @@max_allowed_packet")
            self.most_at_once = int(cursor.fetchone()[0])

    @contextmanager
    def within(self, transaction: Any) -> Iterator[Connection]:
        """The caller's own transaction: a SQLAlchemy Connection or Session. What fails inside undoes only itself."""
        connection = _connection_of(transaction)
        with self.translated("write to"):
            if self.dialect.locks_rows and connection.dialect.detect_autocommit_setting(connection.connection):
                raise ConfigurationError(
                    f"store {self._name!r} cannot take part in your transaction: in AUTOCOMMIT a connection has none"
                )
            if not self.dialect.locks_rows and (missing := self._tables.missing):
                # The caller may have locked the database: any other transaction would wait for it in vain.
                sql_tables.make(connection, self.dialect, missing)
            else:
                self._tables.complete(self._reader)
            self.dialect.begin(connection)
            if not self.dialect.locks_rows:
                check_callers_sqlite(connection, relaxed=self._relaxed)
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
                    # Such as the end of a task: the answer is not waited for, so the connection cannot be used any
                    # more.
                    connection.invalidate(error)
                raise

    def connect_apart(self) -> PoolProxiedConnection:
        """A connection outside the pool, with the driver's own in its `dbapi_connection`; the caller closes it."""
        with self.translated("listen to"):
            connection = self._engine.raw_connection()
            connection.detach()
            return connection

    @contextmanager
    def outside(self, doing: str) -> Iterator[Any]:
        """A driver's connection for what no transaction can do, closed at the end of the block."""
        base = self._engine.dialect.loaded_dbapi.Error
        with self.translated(doing), self._inside(), closing(self.connect_apart()) as connection:
            try:
                yield connection.dbapi_connection
            except base as error:
                raise DBAPIError.instance(None, None, error, base) from error

    @property
    def backend(self) -> str:
        return self._engine.dialect.name

    def close(self) -> None:
        self._engine.dispose()

    # -- tables ------------------------------------------------------------------------------------------------

    def make(self, table: Table) -> None:
        """Makes this table now, or what is missing of it. A user who may not is refused, and can do everything else."""
        with self.translated("change the tables of"), self._inside():
            self._tables.complete(self._reader)
            self._tables.make(self._reader, table)

    def prepare(self) -> list[str]:
        """Makes now what is missing of the required tables, columns and indexes; the tables that lacked something."""
        with self.translated("make the tables of"), self._inside():
            return self._tables.complete(self._reader)

    def plan(self) -> dict[str, list[str]]:
        """What `prepare` would do now, table by table, in SQL where they are made anew."""
        with self.translated("read from"), self._inside():
            return self._tables.plan(self._reader)

    def incomplete(self) -> list[str]:
        """The required tables that are missing or incomplete."""
        with self.translated("read from"), self._inside():
            return self._tables.incomplete(self._reader)

    def has(self, table: Table) -> bool:
        """Whether this table is there, in whatever version. Makes nothing."""
        with self.translated("read from"), self._inside():
            return self._tables.has(self._reader, table)

    def names(self) -> list[str]:
        """The tables of ours that are there. Makes nothing."""
        with self.translated("read from"), self._inside():
            return self._tables.names(self._reader)

    def lacking(self, wanted: Sequence[Right]) -> list[Right]:
        """Those of these rights that the database's user does not have, where the database can be asked."""
        if not self.dialect.tells_rights:
            return []
        return self.read(lambda connection: lacking(connection, wanted))

    @contextmanager
    def translated(self, doing: str) -> Iterator[None]:
        """The database's errors, in our words. Without what caused them: it quotes values, and would be logged."""
        try:
            yield
        except SQLAlchemyError as error:
            fault = tls_fault(error, self._url)
            if fault is not None:
                raise TlsError(
                    f"cannot {doing} store {self._name!r}, because TLS with its server failed: {fault}. Nothing was "
                    "sent; fix the certificate, or the URL's TLS options"
                ) from error
            text = f"cannot {doing} store {self._name!r}: {complaint(error)}"
            if is_away(error):
                raise StoreUnavailableError(text) from None
            if is_denied(error):
                raise NotPermittedError(
                    f"{text}. Nothing was changed; `homing grants` prints what the roles of a pipeline need"
                ) from None
            if is_missing_table(error):
                raise TableMissingError(
                    f"{text}. It was dropped or renamed, with the messages in it: restore it, or open the store again, "
                    "which creates it anew and empty"
                ) from None
            raise StoreError(text) from None
        except (OverflowError, UnicodeEncodeError) as error:
            # Drivers raise these as they are, for numbers and texts that no database holds.
            reason = getattr(error, "reason", None) or str(error)
            raise StoreError(f"cannot {doing} store {self._name!r}: value out of range: {reason}") from None


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
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk
