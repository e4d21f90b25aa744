"""Schedule: when messages that no consumer holds are due. Changes it, or takes back what was never handed out."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Table
from sqlalchemy.engine import Connection

from homing.row import to_nanoseconds
from homing.stores.sql.database import Database, chunks
from homing.stores.sql.notify import notify
from homing.stores.sql.schema import NEVER, apart


class Schedule:
    """The times of the messages of one table."""

    def __init__(self, database: Database, table: Table) -> None:
        self._database = database
        self._table = table

    def cancel(self, message_id: str) -> bool:
        c, now = self._table.c, self._database.now()
        due = apart(c.time_next)
        future = sa.or_(due > now, (due == 0) & (c.time_scheduled > now))
        never = c.lock_token.is_(None) & (c.epoch == 0) & future
        statement = self._table.delete().where(c.id == message_id, never)
        return bool(self._database.write(lambda connection: connection.execute(statement).rowcount))

    def reschedule(self, ids: Collection[str], at: datetime, delivery_count: int | None) -> int:
        c, when = self._table.c, max(1, to_nanoseconds(at))
        values: dict[str, Any] = {"time_next": when, "time_scheduled": when, "lock_token": None, "batch_id": None}
        if delivery_count is not None:
            values["epoch"] = delivery_count

        def work(connection: Connection) -> int:
            changed = 0
            due = apart(c.time_next)
            free = (due != NEVER) & sa.or_(c.lock_token.is_(None), due <= self._database.now())
            for chunk in chunks(ids, self._database.dialect.chunk):
                where = self._database.dialect.among(c.id, chunk) & free
                changed += connection.execute(self._table.update().where(where).values(**values)).rowcount
            if changed:
                notify(connection, self._table.name)
            return changed

        return self._database.write(work)
