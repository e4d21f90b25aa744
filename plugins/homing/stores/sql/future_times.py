"""Finds messages and leases with times in the future, written while this machine's clock was ahead.

They would have to wait until the clock reaches those times again. This concerns only SQLite, whose consumers use their
machine's clock. The other databases use their server's.
"""

from __future__ import annotations

import logging
import time

import sqlalchemy as sa
from sqlalchemy import Table
from sqlalchemy.engine import Connection

from homing.row import NANOSECONDS
from homing.stores.sql.database import Database
from homing.stores.sql.leases import claimed_at, token_from
from homing.stores.sql.properties import SqlProperties

log = logging.getLogger(__name__)

_EVERY = 10.0  # seconds between two looks
_TOLERATED = NANOSECONDS  # clocks are set by less all the time


class Strays:
    """Sets messages and leases of one table that are in the future by mistake back to now."""

    def __init__(self, database: Database, table: Table, name: str) -> None:
        self._database = database
        self._table = table
        self._name = name
        self._looked: float | None = None
        self._last = 0

    def bring_back(self, properties: SqlProperties) -> None:
        """Looks for such messages and sets them back. It looks the first time, then every few seconds, and when the
        clock was set back."""
        if self._database.dialect.locks_rows:
            return
        now, tick = self._database.now(), time.monotonic()
        set_back = now + _TOLERATED < self._last
        if self._looked is not None and tick - self._looked < _EVERY and not set_back:
            self._last = max(self._last, now)
            return
        self._looked, self._last = tick, now
        ahead = now + _TOLERATED
        unheld, held = self._unheld(ahead, properties), self._held(ahead)
        first = sa.select(self._table.c.sequence).where(sa.or_(unheld, held)).limit(1)
        if self._database.read(lambda connection: connection.execute(first).first()) is not None:
            found = self._database.write(lambda connection: self._bring_back(connection, now, unheld, held))
            if found:
                log.warning(
                    "the clock of this machine was ahead: %d messages of store %r no longer wait for that future",
                    *(found, self._name),
                )

    def _unheld(self, ahead: int, properties: SqlProperties) -> sa.ColumnElement[bool]:
        """A condition: the message was stored or released in the future, and its sender did not schedule it."""
        c = self._table.c
        stored = (c.epoch == 0) & (c.time_created > ahead) & (c.time_scheduled <= c.time_created)
        longest = properties.backoffs()[-1] if properties.backoff else 0
        released = (c.epoch > 0) & (c.time_next != c.time_scheduled) & (c.time_next > ahead + longest)
        return (c.time_next > ahead) & c.lock_token.is_(None) & sa.or_(stored, released)

    def _held(self, ahead: int) -> sa.ColumnElement[bool]:
        """A condition: the message was claimed in the future."""
        c, first = self._table.c, token_from(ahead)
        tells_its_time = sa.func.instr(c.lock_token, "-") == len(first) + 1
        return (c.time_next > ahead) & tells_its_time & (c.lock_token > first)

    def _bring_back(
        self, connection: Connection, now: int, unheld: sa.ColumnElement[bool], held: sa.ColumnElement[bool]
    ) -> int:
        c = self._table.c
        stray = self._table.update().where(unheld).values(time_next=now)
        found = connection.execute(stray).rowcount
        leases = sa.select(c.sequence, c.lock_token, c.time_next).where(held)
        for number, token, end in connection.execute(leases).all():
            if end <= claimed_at(token):
                continue  # it was brought back before
            # It lasts as long as when it was taken: the holder keeps it, and it does run out.
            mine = (c.sequence == number) & (c.lock_token == token)
            until = now + end - claimed_at(token)
            found += connection.execute(self._table.update().where(mine).values(time_next=until)).rowcount
        return found
