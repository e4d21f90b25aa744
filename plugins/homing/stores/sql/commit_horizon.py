"""The commit horizon: the sequence number up to which no further message can appear in a table.

A transaction takes its numbers when it writes, and its messages appear when it commits. That may be hours later, when
higher numbers have been there for long. A reader that goes by the numbers must not go past one that is still to come.
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
    """Returns a number up to which no open transaction can add a message; it is `after` or higher.

    It waits for open transactions for `patience` seconds, and returns `after` if they have not ended by then.
    """
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
    """Returns the newest number, once all transactions have ended that were writing when it was there.

    Every lower number was taken by one of these, or by a transaction that had ended before.
    """
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
