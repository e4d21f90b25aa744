"""Durability: makes sure that the server keeps what it has confirmed, as `store` promises.

Where a connection can ask the server for it, it does. Otherwise the server's settings are checked when the connection
is made. A server that may forget what it confirmed, when its machine loses power, is refused, unless the URL accepts
that with `durability=relaxed`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from homing.errors import ConfigurationError

log = logging.getLogger(__name__)

#: Refuses a server that may lose what it confirmed.
FULL: Final = "full"
#: Takes the server as it is.
RELAXED: Final = "relaxed"

# PostgreSQL lets each transaction say that it is not to be forgotten; a stricter setting than `on` stays as it is.
_ASKING = (
    "CASE current_setting('synchronous_commit') WHEN 'off' THEN set_config('synchronous_commit', 'on', {of_this}) END"
)
#: Asks a connection's server, and tells about it what `check_postgresql` wants to know.
ASK_POSTGRESQL = (
    f"SELECT {_ASKING.format(of_this='false')}, current_setting('fsync'), current_setting('full_page_writes')"
)
#: Asks for the transaction at hand.
PLEDGE: sa.ColumnElement[str] = sa.literal_column(_ASKING.format(of_this="true"), sa.Text)
ASK_MYSQL = "SELECT @@GLOBAL.innodb_flush_log_at_trx_commit, @@GLOBAL.log_bin, @@GLOBAL.sync_binlog"

_SQLITE_SYNCED = 2  # "full"; lower levels leave it to the operating system when commits reach the disk
_MYSQL_SYNCED = (1, 3)  # 3, of MariaDB, forces even more

_warned: set[str] = set()


def check_postgresql(answer: Sequence[Any], *, relaxed: bool) -> None:
    """Raises ConfigurationError where commits on PostgreSQL do not reach the disk, even if a connection asks for it."""
    _, synced, whole_pages = answer
    if synced != "on":
        _refuse("PostgreSQL runs with fsync=off", relaxed=relaxed)
    if whole_pages != "on":
        _warn(
            "PostgreSQL runs with full_page_writes=off: unless its file system writes pages whole, a power failure "
            "can destroy them"
        )


def check_mysql(answer: Sequence[Any], *, relaxed: bool) -> None:
    """Raises ConfigurationError where commits on MySQL or MariaDB do not reach the disk. A connection cannot ask for
    it."""
    flushed, logged, synced = answer
    if flushed not in _MYSQL_SYNCED:
        _refuse(f"the server runs with innodb_flush_log_at_trx_commit={flushed}, not 1", relaxed=relaxed)
    if logged and synced != 1:
        _warn(
            f"the server has a binary log and runs with sync_binlog={synced}: what it confirmed last may be rolled "
            "back after a power failure; 1 is safe"
        )


def check_callers_sqlite(connection: Connection, *, relaxed: bool) -> None:
    """Raises ConfigurationError where the transaction of a caller's own connection does not reach the disk: it has
    begun, and SQLite cannot be asked any more."""
    level = connection.exec_driver_sql("PRAGMA synchronous").scalar_one()
    if level < _SQLITE_SYNCED and not relaxed:
        raise ConfigurationError(
            f"your transaction's connection has PRAGMA synchronous={level}: its commit may not be on the disk when it "
            "returns, and the message with it. Set it to FULL before the transaction begins, or open the store with "
            f"durability={RELAXED}"
        )


def _refuse(what: str, *, relaxed: bool) -> None:
    if relaxed:
        _warn(f"{what}: what it confirmed may be gone after a power failure, as durability={RELAXED} accepts")
        return
    raise ConfigurationError(
        f"{what}: what it confirmed may be gone after a power failure, and with it messages that were stored. Change "
        f"the server, or accept that with durability={RELAXED} in the store's URL"
    )


def _warn(text: str) -> None:
    """Once for each process: connections come and go."""
    if text not in _warned:
        _warned.add(text)
        log.warning("%s", text)
