"""How long a statement may take, and wait for somebody else's lock: said by whoever tries, kept by the database itself.

The database gives up, and undoes what it began; nothing goes on behind the back of whoever tries again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from sqlalchemy.engine import Connection

BUSY_TIMEOUT = 30.0  # seconds for which SQLite waits for another process's transaction, unless told otherwise

_LIMIT: ContextVar[float | None] = ContextVar("homing_sql_limit", default=None)
_SET = "homing_limit"  # where a connection keeps what it was told


@contextmanager
def limited_to(seconds: float) -> Iterator[None]:
    """What this thread begins inside the block is given up, with StoreUnavailableError, when it takes longer."""
    token = _LIMIT.set(seconds)
    try:
        yield
    finally:
        _LIMIT.reset(token)


def limit_sqlite(connection: Connection) -> None:
    wanted = _LIMIT.get() or BUSY_TIMEOUT
    if connection.info.get(_SET, BUSY_TIMEOUT) != wanted:
        connection.exec_driver_sql(f"PRAGMA busy_timeout = {_milliseconds(wanted)}")
        connection.info[_SET] = wanted


def limit_postgresql(connection: Connection) -> None:
    if (wanted := _LIMIT.get()) is not None:
        # Until the end of the transaction, however that ends.
        connection.exec_driver_sql(f"SET LOCAL statement_timeout = {_milliseconds(wanted)}")


def limit_mysql(connection: Connection) -> None:
    wanted = _LIMIT.get()
    if connection.info.get(_SET) == wanted:
        return
    lock_wait = "DEFAULT" if wanted is None else max(1, round(wanted))
    limits = f"SESSION innodb_lock_wait_timeout = {lock_wait}"
    if getattr(connection.dialect, "is_mariadb", False):  # MySQL limits nothing but reading
        limits += f", SESSION max_statement_time = {'DEFAULT' if wanted is None else wanted}"
    connection.exec_driver_sql(f"SET {limits}")
    connection.info[_SET] = wanted


def _milliseconds(seconds: float) -> int:
    return max(1, min(round(seconds * 1000), 2**31 - 1))
