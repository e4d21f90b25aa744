"""Tells what a database's error means: an outage, a missing table, a missing right, or something else.

An outage is an error that may go away although messages, statements and tables stay as they are. So it is with a server
that cannot be reached, is starting or stopping, is read-only, is full, or has too many connections.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

# PostgreSQL's states, by their beginnings: connection exceptions, insufficient resources, operator intervention and
# system errors; transactions to be done again; reading only; transactions ended for their age; a lock not to be had.
_STATES = ("08", "53", "57", "58000", "58030", "40", "25006", "25P03", "25P04", "55P03")

# MySQL's numbers, and MariaDB's. From 2000 to 2999 are those of the client, which lost its server or found none.
_NUMBERS = {
    *(1020, 1205, 1206, 1213),  # overtaken, waited too long for a lock, deadlocked
    *(1290, 1792, 1836, 3100),  # read-only
    *(1021, 1026, 1030, 1114, 1180),  # the disk is full or fails
    *(1037, 1038, 1041, 1135),  # memory or threads are used up
    *(1040, 1129, 1203, 1226),  # too many connections, or too many of this user's
    *(1044, 1045, 1049, 1130, 1698),  # not let in, which PostgreSQL's driver does not tell from a server that is away
    *(1042, 1043, 1158, 1159, 1160, 1161, 1184, 1927, 4031),  # the connection
    *(1053, 1077, 1079, 1080, 3032, 3169),  # shutting down, or offline
    *(1317, 1969, 3024),  # stopped for the time it took
}
_CLIENT = range(2000, 3000)

# SQLite's own words, which do not change: Python 3.10 does not tell its numbers.
_WORDS = (
    "database is locked",
    "database table is locked",
    "database schema is locked",
    "attempt to write a readonly database",
    "disk I/O error",
    "database or disk is full",
    "unable to open database file",
    "locking protocol",
    "out of memory",
    "interrupted",
)

_NO_TABLE = ("42P01", "1146", "1932")
_NO_TABLE_WORDS = "no such table"

# A right that was not granted: on a schema, a table, a column, a routine.
_NOT_PERMITTED = ("42501", "1142", "1143", "1227", "1370")

# What databases say when two transactions wait for each other, or one was overtaken.
_AGAIN = ("40P01", "40001", "1213", "1020")


def is_away(error: SQLAlchemyError) -> bool:
    """Whether the same will work later, when the database is there again."""
    if isinstance(error, PoolTimeoutError):
        return True
    if not isinstance(error, DBAPIError):
        return False
    if error.connection_invalidated:
        return True
    code = code_of(error)
    if isinstance(code, int):
        return code in _NUMBERS or code in _CLIENT or (code == 0 and isinstance(error, InterfaceError))
    if code is not None:
        return code.startswith(_STATES)
    if is_sqlite(error):
        return str(error.orig).startswith(_WORDS)
    # A driver that has no answer of the server's to tell about has lost it, or did not find it.
    return isinstance(error, OperationalError | InterfaceError)


def is_missing_table(error: SQLAlchemyError) -> bool:
    """Whether a table is not there."""
    if not isinstance(error, DBAPIError):
        return False
    return str(code_of(error)) in _NO_TABLE or (is_sqlite(error) and str(error.orig).startswith(_NO_TABLE_WORDS))


def is_denied(error: SQLAlchemyError) -> bool:
    """Whether the database's user may not do this."""
    return isinstance(error, DBAPIError) and str(code_of(error)) in _NOT_PERMITTED


def asks_again(error: DBAPIError) -> bool:
    """Whether the database asks for the transaction to be done once more."""
    return str(code_of(error)) in _AGAIN


def code_of(error: DBAPIError) -> str | int | None:
    """MySQL's number, or PostgreSQL's SQLSTATE."""
    original: Any = error.orig
    first = original.args[0] if original is not None and original.args else None
    if isinstance(first, int):
        return first
    state = getattr(original, "sqlstate", None)
    return None if state is None else str(state)


def is_sqlite(error: DBAPIError) -> bool:
    """Whether it is SQLite's, which has words and no numbers."""
    return type(error.orig).__module__ == "sqlite3"
