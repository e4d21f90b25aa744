"""Scrub: makes a database remove from its files what is left there of removed rows, as far as a client can."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing

from homing.errors import StoreUnavailableError
from homing.stores.sql.database import Database

_DOING = "clean up"
_PATIENCE = 10.0  # seconds for which those who read SQLite's log are waited for
_PAUSE = 0.1


def scrub(database: Database, tables: Sequence[str], patience: float = _PATIENCE) -> str | None:
    """Makes the database remove from its files what is left of removed rows of these tables, as far as a client can.

    Returns in words what is left to do, or None. Raises StoreUnavailableError if other processes keep SQLite from it.
    """
    if database.backend == "sqlite":
        _rewrite_sqlite(database, patience)
        return None
    if database.backend == "postgresql":
        return _vacuum_postgresql(database, tables)
    return (
        "MariaDB and MySQL keep what was in removed rows on their pages until these are used again; "
        f"OPTIMIZE TABLE {', '.join(tables)} rewrites them"
    )


def _rewrite_sqlite(database: Database, patience: float) -> None:
    """Writes the file anew, without its free pages, and empties its log."""
    limit = time.monotonic() + patience
    with database.outside(_DOING) as connection, closing(connection.cursor()) as cursor:
        cursor.execute("VACUUM")
        while cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
            if time.monotonic() > limit:
                raise StoreUnavailableError(
                    "what was removed is still in the log of the SQLite file, which others read: try again later"
                )
            time.sleep(_PAUSE)


def _vacuum_postgresql(database: Database, tables: Sequence[str]) -> str:
    warnings: list[str] = []
    with database.outside(_DOING) as connection:
        connection.autocommit = True
        connection.silence = None  # it takes as long as it takes
        connection.add_notice_handler(lambda notice: warnings.append(notice.severity_nonlocalized))
        for name in tables:
            connection.execute(f'VACUUM "{name}"')
    rewrite = f"VACUUM (FULL) {', '.join(tables)}"
    if "WARNING" in warnings:
        return f"this user may not vacuum the tables, whose dead rows hold what was removed: have their owner {rewrite}"
    return f"PostgreSQL keeps what was in removed rows on its pages until these are used again; {rewrite} rewrites them"
