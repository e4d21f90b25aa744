"""Tombstones: say which messages a person had removed, when and why, and nothing of their contents."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from homing.ledger import Tombstone, Tombstones, digest
from homing.message import MessageRef
from homing.row import from_nanoseconds
from homing.stores.sql.database import Database, chunks
from homing.stores.sql.schema import forgotten_table


class SqlTombstones(Tombstones):
    """The tombstones of one store. It uses the store's connections."""

    def __init__(self, database: Database, name: str) -> None:
        self._database = database
        self.table = forgotten_table(name)
        database.require(self.table)

    def begin(self, refs: Sequence[MessageRef], reason: str) -> None:
        now, digests = self._database.now(), {digest(ref): ref for ref in refs}
        values = [
            {"digest": key, "table_id": ref.table_id, "sequence": ref.sequence, "reason": reason, "time_asked": now}
            for key, ref in digests.items()
        ]
        statement = self._database.dialect.upsert(self.table, ["digest"], {"time_done": lambda _: sa.null()})
        self._database.write(lambda connection: connection.execute(statement, values))

    def finish(self, refs: Sequence[MessageRef]) -> None:
        c, now = self.table.c, self._database.now()

        def work(connection: Connection) -> None:
            for chunk in chunks(map(digest, refs), self._database.dialect.chunk):
                mine = self._database.dialect.among(c.digest, chunk)
                connection.execute(self.table.update().where(mine).values(time_done=now))

        self._database.write(work)

    def unfinished(self, message_ids: Collection[str]) -> list[MessageRef]:
        c = self.table.c
        statement = sa.select(c.digest, c.table_id, c.sequence).where(c.time_done.is_(None)).order_by(c.sequence)
        found = self._database.read(lambda connection: connection.execute(statement).all())
        meant = ((row.digest, MessageRef(row.table_id, row.sequence, one)) for row in found for one in message_ids)
        return [ref for known, ref in meant if digest(ref) == known]

    def all(self) -> list[Tombstone]:
        c = self.table.c
        statement = sa.select(c.digest, c.reason, c.time_asked, c.time_done).order_by(c.time_asked, c.digest)
        found = self._database.read(lambda connection: connection.execute(statement).all())
        return [
            Tombstone(key, reason, from_nanoseconds(asked), None if done is None else from_nanoseconds(done))
            for key, reason, asked, done in found
        ]
