"""Settled: up to which sequence number nothing can appear any more.

A transaction takes its numbers when it writes and shows them when it commits, which may be hours later: by then higher
numbers have long been there. Who reads a table in the order of its numbers must not go past one that is still to come.
"""

from __future__ import annotations

import logging
import time

import sqlalchemy as sa
from sqlalchemy import Table
from sqlalchemy.engine import Connection

from homing.row import NANOSECONDS
from homing.scans import PATIENCE
from homing.stores.sql.database import Database

log = logging.getLogger(__name__)

_PAUSE = 0.02
# MariaDB takes a number a moment before it writes the row.
_MOMENT = NANOSECONDS

# Every insert takes this lock before it takes a number, until its transaction ends.
_WRITERS = sa.text(
    "SELECT virtualtransaction FROM pg_locks WHERE locktype = 'relation' AND mode = 'RowExclusiveLock' "
    "AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND relation = to_regclass(:name)"
)
_PREPARED = "-1/"  # how PostgreSQL calls a transaction that was prepared, whatever it was called before


def settled(database: Database, table: Table, after: int, patience: float = PATIENCE) -> int:
    """A number from `after` on, up to which no transaction that is open can bring a message: `after` itself when that
    is not known after so many seconds."""
    if not database.dialect.locks_rows:
        return _newest(database, table, after)  # one writer at a time: its numbers are in the order of the commits
    if database.dialect.reads_uncommitted:
        return _below_uncommitted(database, table, after)
    return _once_writers_are_done(database, table, after, patience)


def _newest(database: Database, table: Table, after: int) -> int:
    sequence = table.c.sequence
    newest = sa.select(sa.func.max(sequence)).where(sequence > after)
    return database.read(lambda connection: connection.execute(newest).scalar()) or after


def _once_writers_are_done(database: Database, table: Table, after: int, patience: float) -> int:
    """The newest number there is, when all have ended that wrote after it was there: lower ones were taken before."""
    newest = _newest(database, table, after)
    if newest == after:
        return after

    def ask(connection: Connection) -> set[str]:
        name = connection.dialect.identifier_preparer.format_table(table)
        return set(connection.execute(_WRITERS, {"name": name}).scalars())

    writers, limit = database.read(ask), time.monotonic() + patience
    while writers:
        if time.monotonic() > limit:
            log.info("table %s is read up to %d only: a transaction that writes to it is open", table.name, after)
            return after
        time.sleep(_PAUSE)
        writers = {each for each in database.read(ask) if each in writers or each.startswith(_PREPARED)}
    return newest


def _below_uncommitted(database: Database, table: Table, after: int) -> int:
    """The newest number before the first that is not committed, all of them older than a moment."""
    c = table.c
    numbers = sa.select(c.sequence).where(c.sequence > after).order_by(c.sequence)
    young = sa.select(sa.func.min(c.sequence)).where(c.sequence > after, c.time_created > database.now() - _MOMENT)

    def ask(connection: Connection) -> tuple[list[int], int | None]:
        return list(connection.execute(numbers).scalars()), connection.execute(young).scalar()

    written, first_young = database.read_uncommitted(ask)
    committed, _ = database.read(ask)
    open_ones = set(written).difference(committed)
    stop = min(filter(None, (min(open_ones, default=None), first_young)), default=None)
    return max((number for number in written if stop is None or number < stop), default=after)
