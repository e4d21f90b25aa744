"""Tombstones: which messages a person had removed, when and why, without anything of the messages."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from operator import itemgetter
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from homing.message import MessageRef
from homing.stores.sql.database import Database, chunks
from homing.stores.sql.rows import from_nanoseconds
from homing.stores.sql.schema import forgotten_table


class Tombstone(NamedTuple):
    """A message that was forgotten. `ref` is there only while that is not done."""

    digest: str
    reason: str
    asked: datetime
    done: datetime | None
    ref: MessageRef | None


class Tombstones:
    """Those of one store. Thread-safe; shares the connections of the store it stands beside."""

    def __init__(self, database: Database, name: str) -> None:
        self._database = database
        self._table = forgotten_table(name)
        database.require(self._table)

    def begin(self, refs: Sequence[MessageRef], reason: str) -> None:
        """Notes that these messages are being forgotten. One that is noted already keeps its time and reason."""
        now = self._database.now()
        values = [{"digest": digest(ref), "reason": reason, "time_asked": now, **_open(ref)} for ref in refs]
        changed = {name: itemgetter(name) for name in values[0].keys() - {"digest", "reason", "time_asked"}}
        statement = self._database.dialect.upsert(self._table, ["digest"], changed)
        self._database.write(lambda connection: connection.execute(statement, values))

    def finish(self, refs: Iterable[MessageRef]) -> None:
        """Nothing of these messages is left, and their references go too."""
        gone = {"time_done": self._database.now(), "table_id": None, "sequence": None, "message_id": None}

        def work(connection: Connection) -> None:
            for chunk in chunks([digest(ref) for ref in refs], self._database.dialect.chunk):
                mine = self._database.dialect.among(self._table.c.digest, chunk)
                connection.execute(self._table.update().where(mine).values(**gone))

        self._database.write(work)

    def unfinished(self, message_ids: Collection[str]) -> list[MessageRef]:
        """The messages of these ids that somebody began to forget, and did not come to an end."""
        c = self._table.c

        def work(connection: Connection) -> list[MessageRef]:
            found: list[MessageRef] = []
            for chunk in chunks(message_ids, self._database.dialect.chunk):
                mine = self._database.dialect.among(c.message_id, chunk)
                rows = connection.execute(sa.select(c.table_id, c.sequence, c.message_id).where(mine))
                found += [MessageRef(*row) for row in rows]
            return found

        return self._database.read(work)

    def all(self) -> list[Tombstone]:
        """Every one, in the order in which they were asked for."""
        statement = sa.select(self._table).order_by(self._table.c.time_asked, self._table.c.digest)
        found = self._database.read(lambda connection: connection.execute(statement).all())
        return [
            Tombstone(
                row.digest,
                row.reason,
                from_nanoseconds(row.time_asked),
                None if row.time_done is None else from_nanoseconds(row.time_done),
                None if row.message_id is None else MessageRef(row.table_id, row.sequence, row.message_id),
            )
            for row in found
        ]


def digest(ref: MessageRef) -> str:
    """Tells whether a message that somebody still knows by its reference is the one meant, and nothing else."""
    return hashlib.sha256(f"{ref.table_id}-{ref.sequence}/{ref.id}".encode()).hexdigest()


def _open(ref: MessageRef) -> dict[str, str | int | None]:
    return {"table_id": ref.table_id, "sequence": ref.sequence, "message_id": ref.id, "time_done": None}
