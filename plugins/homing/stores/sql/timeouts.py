"""Limits how long a statement may take, or wait for a lock. The caller sets the limit, and the database enforces it.

At the limit the database gives up and undoes what it began, so nothing goes on in the background while the caller tries
again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from sqlalchemy.engine import Connection

#: Seconds for what takes as long as it takes, where a number has to be said.
UNLIMITED = 86_400.0

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


def limit_sqlite(connection: Connection, usual: float) -> None:
    """`usual` is the connection's own limit, for callers that set none."""
    wanted = _LIMIT.get() or usual
    if connection.info.get(_SET, usual) != wanted:
        connection.exec_driver_sql(f"PRAGMA busy_timeout = {milliseconds(wanted)}")
        connection.info[_SET] = wanted


def limit_postgresql(connection: Connection) -> None:
    if (wanted := _LIMIT.get()) is not None:
        # Until the end of the transaction, however that ends.
        connection.exec_driver_sql(f"SET LOCAL statement_timeout = {milliseconds(wanted)}")


def limit_mysql(connection: Connection, usual: float) -> None:
    wanted = _LIMIT.get()
    if connection.info.get(_SET) == wanted:
        return
    limits = f"SESSION {mysql_lock_wait(wanted or usual)}"
    if getattr(connection.dialect, "is_mariadb", False):  # MySQL limits nothing but reading
        limits += f", SESSION max_statement_time = {'DEFAULT' if wanted is None else wanted}"
    connection.exec_driver_sql(f"SET {limits}")
    connection.info[_SET] = wanted


def mysql_lock_wait(seconds: float) -> str:
    """The setting that has MySQL wait so long for a lock, which it counts in whole seconds."""
    return f"innodb_lock_wait_timeout = {max(1, round(seconds))}"


def milliseconds(seconds: float) -> int:
    return max(1, min(round(seconds * 1000), 2**31 - 1))
