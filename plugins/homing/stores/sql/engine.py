"""Connections: sets each database's connections up for the store, and says how long to wait for a silent network."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import sqlalchemy
from sqlalchemy.engine import URL, Connection, Engine
from sqlalchemy.exc import DisconnectionError

from homing.errors import ConfigurationError, MissingExtraError
from homing.stores.sql import durability, timeouts
from homing.stores.sql.private_file import make_private_file
from homing.stores.sql.tls import driver_settings

# Of a connection: which file it has open.
_FILE = "homing_file"
#: Set on an engine whose transactions only read.
READING = "homing_reading"
# Seconds within which a server has to let us in; PostgreSQL's driver takes no less than the least.
_CONNECT, _LEAST_CONNECT = 10, 2
# Seconds by which a server's own word that it takes too long may come later.
_GRACE = 2.0
# So long a connection may be idle before the network is asked whether it still leads anywhere; all in seconds.
_KEEPALIVE = {"keepalives": 1, "keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}


def make_engine(
    url: URL, *, timeout: float | None, relaxed: bool = False, read_only: bool = False, require_tls: bool = False
) -> Engine:
    """An engine whose connections are durable, or fail at once; `relaxed` takes the server as it is. With `read_only`
    the database refuses to write. With `require_tls` nothing is ever sent in plain text.

    A server from which nothing is heard for `timeout` seconds is away. None waits for ever, for the few things that
    take as long as they take.
    """
    backend, asked = url.get_backend_name(), url
    url, secured = driver_settings(url, required=require_tls)
    # Parameters are payloads: they must not reach a log through an error text.
    options: dict[str, Any] = {
        "hide_parameters": True,
        "connect_args": {**_connect_args(url, backend, timeout), **secured},
    }
    if timeout is not None:
        options["pool_timeout"] = timeout
    if backend == "sqlite" and read_only:
        # A file that is not there is not made either.
        url = url.set(database=f"file:{quote(str(url.database))}").update_query_dict({"mode": "rw", "uri": "true"})
    if backend != "sqlite":
        # Anything stricter locks gaps between rows, and consumers would wait for each other.
        options["isolation_level"] = "READ COMMITTED"
    try:
        engine = sqlalchemy.create_engine(url, **options)
    except ImportError as error:
        raise MissingExtraError(f"the database driver for {backend} cannot be loaded: {error}") from error
    if read_only:
        sqlalchemy.event.listen(engine, "connect", partial(_refuse_writing, backend))
    _set_up_connections(engine, asked, timeout, relaxed=relaxed, read_only=read_only)
    return engine


def _set_up_connections(engine: Engine, url: URL, timeout: float | None, *, relaxed: bool, read_only: bool) -> None:
    """Sees to it that each connection, and each transaction, is set up as the store needs it."""
    backend = url.get_backend_name()
    usual = timeout or timeouts.UNLIMITED
    if backend == "sqlite":
        place = str(url.database)
        sqlalchemy.event.listen(engine, "connect", partial(_note_file, place))
        sqlalchemy.event.listen(engine, "checkout", partial(_refuse_other_file, place))
        if not read_only:
            sqlalchemy.event.listen(engine, "do_connect", lambda *_: make_private_file(str(url.database)))
            sqlalchemy.event.listen(engine, "connect", _set_up_sqlite)
        sqlalchemy.event.listen(engine, "begin", partial(_begin_sqlite, usual=usual))
    elif backend == "mysql":
        sqlalchemy.event.listen(engine, "connect", partial(_set_up_mysql, usual=usual, relaxed=relaxed))
        sqlalchemy.event.listen(engine, "begin", partial(timeouts.limit_mysql, usual=usual))
    else:
        if timeout is not None:
            sqlalchemy.event.listen(engine, "do_connect", partial(_connect_postgresql, timeout=timeout))
        sqlalchemy.event.listen(engine, "connect", partial(_set_up_postgresql, usual=usual, relaxed=relaxed))
        sqlalchemy.event.listen(engine, "begin", timeouts.limit_postgresql)


def anchored(url: URL) -> URL:
    """The URL with SQLite's file as an absolute path: every connection opens that file, wherever the process goes."""
    if url.get_backend_name() != "sqlite" or not url.database:
        return url
    return url.set(database=str(Path(url.database).absolute()))


def descriptor_of(connection: Any) -> int:
    """The file descriptor of a driver's connection to a server."""
    pgconn = getattr(connection, "pgconn", None)
    return int(connection._sock.fileno() if pgconn is None else pgconn.socket)  # noqa: SLF001 - it tells by no other way


def _connect_args(url: URL, backend: str, timeout: float | None) -> dict[str, Any]:
    """What the driver is told, unless the URL says otherwise."""
    if backend == "sqlite":
        return {"timeout": timeout or timeouts.UNLIMITED}
    connect = max(_LEAST_CONNECT, min(_CONNECT, round(timeout or _CONNECT)))
    if backend == "mysql":
        told: dict[str, Any] = {"charset": "utf8mb4", "connect_timeout": connect}
        if timeout is not None:
            told |= {"read_timeout": timeout + _GRACE, "write_timeout": timeout + _GRACE}
    else:
        told = {"connect_timeout": connect, **_KEEPALIVE}
        if timeout is not None:
            told["tcp_user_timeout"] = timeouts.milliseconds(timeout + _GRACE)
    return {name: value for name, value in told.items() if name not in url.query}


def _connect_postgresql(dialect: Any, _record: Any, args: Any, options: Any, *, timeout: float) -> Any:
    connection = _attentive(dialect.loaded_dbapi).connect(*args, **options)
    connection.silence = timeout + _GRACE
    return connection


@lru_cache
def _attentive(driver: Any) -> Any:
    """The driver's connection, which gives up a server from which it hears nothing for `silence` seconds.

    The driver itself would wait for ever: a network that is half open acknowledges what is sent and brings nothing.
    """

    class Attentive(driver.Connection):  # type: ignore[misc]
        silence: float | None = None

        def wait(self, gen: Any, *args: Any, **options: Any) -> Any:
            # Who limits a wait himself, as when he waits for a call, is not waiting for an answer.
            if self.silence is None or options.get("timeout") is not None:
                return super().wait(gen, *args, **options)
            return super().wait(self._listening(gen, self.silence), *args, **options)

        def _listening(self, gen: Any, silence: float) -> Generator[Any, Any, Any]:
            heard = time.monotonic()
            try:
                wanted = next(gen)
                while True:
                    ready = yield wanted
                    if ready:
                        heard = time.monotonic()
                    elif time.monotonic() - heard > silence:
                        self.pgconn.finish()  # the connection cannot be used any more: the answer may still come
                        raise driver.OperationalError(f"no answer from the server for {silence:g} s")
                    wanted = gen.send(ready)
            except StopIteration as end:
                return end.value

    return Attentive


#: How each database is told to write nothing on a connection.
_READ_ONLY = {
    "sqlite": "PRAGMA query_only = ON",
    "postgresql": "SET default_transaction_read_only = on",
    "mysql": "SET SESSION TRANSACTION READ ONLY",
}


def _refuse_writing(backend: str, connection: Any, _record: Any) -> None:
    if backend == "sqlite":
        connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute(_READ_ONLY[backend])
    cursor.close()
    connection.commit()


def _note_file(place: str, _connection: Any, record: Any) -> None:
    record.info[_FILE] = _file_at(place)


def _refuse_other_file(place: str, _connection: Any, record: Any, _proxy: Any) -> None:
    """Has the pool connect anew where the file was removed or replaced: on Linux, SQLite would go on with the one that
    no other process can reach any more, and lose what it is given."""
    if record.info[_FILE] != _file_at(place):
        raise DisconnectionError


def _file_at(place: str) -> tuple[int, int] | None:
    try:
        found = Path(place).stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


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


def _set_up_postgresql(connection: Any, _record: Any, *, usual: float, relaxed: bool) -> None:
    settings = (
        # Our statements walk along indexes and stop early. A table that fills and empties all day has statistics of
        # another hour, by which reading and sorting all of it looks as good; it is not when a million messages wait.
        "SET enable_seqscan = off",
        "SET enable_bitmapscan = off",
        # What a discouraged plan is said to cost would make the server compile it, for many times what it takes to run.
        "SET jit = off",
        # Who waits for a lock is told by the server that it takes too long, and his transaction is undone.
        f"SET lock_timeout = {timeouts.milliseconds(usual)}",
    )
    cursor = connection.cursor()
    cursor.execute("; ".join([*settings, durability.ASK_POSTGRESQL]))
    while cursor.nextset():
        pass  # only the last statement has an answer
    answer = cursor.fetchone()
    cursor.close()
    connection.commit()
    with _closed_when_refused(connection):
        durability.check_postgresql(answer, relaxed=relaxed)


def _set_up_mysql(connection: Any, _record: Any, *, usual: float, relaxed: bool) -> None:
    cursor = connection.cursor()
    # What does not fit is an error, not cut to size; times by the database's clock are in UTC.
    cursor.execute(
        f"SET SESSION sql_mode = 'TRADITIONAL', SESSION time_zone = '+00:00', SESSION {timeouts.mysql_lock_wait(usual)}"
    )
    cursor.execute(durability.ASK_MYSQL)
    answer = cursor.fetchone()
    cursor.close()
    with _closed_when_refused(connection):
        durability.check_mysql(answer, relaxed=relaxed)


@contextmanager
def _closed_when_refused(connection: Any) -> Iterator[None]:
    try:
        yield
    except ConfigurationError:
        connection.close()
        raise


def _begin_sqlite(connection: Connection, *, usual: float) -> None:
    timeouts.limit_sqlite(connection, usual)
    # A writer takes the write lock at once: a transaction that reads first and writes later could be refused.
    reading = connection.get_execution_options().get(READING, False)
    connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")
