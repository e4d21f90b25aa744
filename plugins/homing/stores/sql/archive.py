"""The archive: a table for acknowledged messages, on PostgreSQL. It has a part for each day, which is dropped whole."""

from __future__ import annotations

import logging
from datetime import datetime, timezone

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError

from homing.errors import HomingError, StoreUnavailableError
from homing.row import NANOSECONDS
from homing.stores.sql import archive_days
from homing.stores.sql.database import Database
from homing.stores.sql.schema import archive_table

log = logging.getLogger(__name__)

# A day is dropped no sooner than this after its end: a process may still be archiving what it acknowledged at midnight.
_GRACE = 3_600 * NANOSECONDS
_PURGE_CHUNK = 5_000
_PATIENCE = "2s"  # for which dropping a day may wait for others, while others wait for it
_LOCK_TIMEOUT = "55P03"
_CHANGED = ("time_acked", "time_next", "lock_token")


class Archive:
    """The archive of one table of messages. The first process that needs the part for a day makes it."""

    def __init__(self, database: Database, messages: sa.Table) -> None:
        self._database = database
        self._messages = messages
        self.table = archive_table(messages)
        self._days: set[int] = set()
        self._required = False
        #: Whether it was there once, and so always will be.
        self.seen = False

    def require(self) -> None:
        """Has the table made, with the next transaction, where there is none: only those who archive need one."""
        if not self._required:
            self._required = True
            self._database.require(self.table)

    def make(self) -> None:
        """Makes the table now. If that fails, it raises, and the store goes on without the table."""
        self.require()
        try:
            self._database.prepare()
        except HomingError:
            self._required = False
            self._database.do_without(self.table)
            raise

    def is_there(self, connection: Connection) -> bool:
        """Whether a message was ever archived."""
        if not self.seen:
            found = sa.select(sa.func.to_regclass(f'"{self.table.name}"').is_not(None))
            self.seen = bool(connection.execute(found).scalar_one())
        return self.seen

    def prepare(self, now: int) -> None:
        """Makes the part for the day of `now`, in a transaction of its own, if it is not there."""
        day = now // archive_days.LENGTH
        if day not in self._days:
            self._database.write(lambda connection: self.make_room(connection, now))
            self._days = {day}

    def make_room(self, connection: Connection, now: int) -> None:
        """Makes the part for the day of `now` within the caller's transaction, if it is not there."""
        day = now // archive_days.LENGTH
        if day in self._existing(connection):
            return
        archive_days.make(connection, self.table, day)

    def moving(self, mine: sa.ColumnElement[bool]) -> sa.Insert:
        """A statement that moves these messages here, acknowledged at `new_time_acked`."""
        gone = self._messages.delete().where(mine).returning(*self._messages.c).cte("gone")
        names = [column.name for column in self._messages.c if column.name not in _CHANGED]
        moved = sa.select(sa.bindparam("new_time_acked", type_=sa.BigInteger), *(gone.c[name] for name in names))
        move = self.table.insert().from_select(["time_acked", *names], moved)
        return move.execution_options(preserve_rowcount=True)

    def knows(self, connection: Connection, batch_id: str) -> bool:
        """Whether something of this batch is here."""
        if not self.is_there(connection):
            return False
        one = sa.select(self.table.c.sequence).where(self.table.c.batch_id == batch_id).limit(1)
        return connection.execute(one).first() is not None

    def purge(self, until: int) -> int:
        """Drops the days that ended before `until`, and removes the messages before it from the others.

        Returns how many messages were removed.
        """
        existing = self._database.read(self._existing)
        removed = 0
        for day in existing:
            self.require()  # it may have been created without the function for its days
            if (day + 1) * archive_days.LENGTH <= min(until, self._database.now() - _GRACE):
                removed += self._drop(day)
            elif day * archive_days.LENGTH <= until:
                removed += self._delete(day, until)
        return removed

    # -- days --------------------------------------------------------------------------------------------------

    def _name(self, day: int) -> str:
        date = datetime.fromtimestamp(day * 86_400, timezone.utc)
        return f"{self.table.name}_{date:%Y%m%d}"

    def _existing(self, connection: Connection) -> list[int]:
        children = sa.text(
            "SELECT child.relname FROM pg_inherits JOIN pg_class child ON child.oid = inhrelid "
            "WHERE inhparent = to_regclass(:parent) AND child.relname ~ '_[0-9]{8}$' ORDER BY child.relname"
        )
        names = connection.execute(children, {"parent": f'"{self.table.name}"'}).scalars()
        dates = [datetime.strptime(name[-8:], "%Y%m%d").replace(tzinfo=timezone.utc) for name in names]
        return [int(date.timestamp()) // 86_400 for date in dates]

    def _drop(self, day: int) -> int:
        """How many messages went with the day. It stays, until the next time, when others keep it in use."""

        def work(connection: Connection) -> int:
            connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{_PATIENCE}'")
            return archive_days.drop(connection, self.table, day)

        try:
            return self._database.write(work)
        except StoreUnavailableError as error:
            if not _timed_out(error.__context__):
                raise
            log.info("%s is in use, and will be dropped another time", self._name(day))
            return 0

    def _delete(self, day: int, until: int) -> int:
        # By the archive's name: of its days, a consumer has no rights of its own. The times tell the one day.
        name, removed = self.table.name, 0
        statement = sa.text(
            f'DELETE FROM "{name}" WHERE time_acked BETWEEN :begin AND :until AND ctid = ANY(ARRAY('  # noqa: S608
            f'SELECT ctid FROM "{name}" WHERE time_acked BETWEEN :begin AND :until LIMIT {_PURGE_CHUNK}))'
        )
        until = min(until, (day + 1) * archive_days.LENGTH - 1)

        def work(connection: Connection) -> int:
            return int(connection.execute(statement, {"begin": day * archive_days.LENGTH, "until": until}).rowcount)

        while (gone := self._database.write(work)) == _PURGE_CHUNK:
            removed += gone
        return removed + gone


def _timed_out(error: BaseException | None) -> bool:
    return isinstance(error, DBAPIError) and getattr(error.orig, "sqlstate", None) == _LOCK_TIMEOUT
