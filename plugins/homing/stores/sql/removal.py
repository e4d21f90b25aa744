"""Removal: removes all rows of a message, whatever their state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sqlalchemy as sa
from sqlalchemy import Table
from sqlalchemy.engine import Connection

from homing.errors import StillHeldError
from homing.pipeline_store import Erasure
from homing.row import from_nanoseconds
from homing.stores.sql.archive import Archive
from homing.stores.sql.database import Database, chunks
from homing.stores.sql.notify import notify
from homing.stores.sql.schema import apart
from homing.stores.sql.scrub import scrub


class SqlErasure(Erasure):
    """Removes from one table of messages, and from its archive."""

    def __init__(self, database: Database, table: Table, name: str, archive: Archive | None) -> None:
        self._database = database
        self._table = table
        self._name = name
        self._archive = archive

    def remove(self, ids: Mapping[int, str]) -> int:
        def work(connection: Connection) -> int:
            removed = 0
            for chunk in chunks(ids.items(), self._database.dialect.chunk):
                self._refuse_held(connection, chunk, lock=self._database.dialect.locks_rows)
                removed += connection.execute(self._table.delete().where(self._these(self._table, chunk))).rowcount
                # After the table: what was on its way into the archive is there by now.
                if self._archive is not None and self._archive.is_there(connection):
                    archived = self._archive.table
                    removed += connection.execute(archived.delete().where(self._these(archived, chunk))).rowcount
            if removed:
                notify(connection, self._table.name)  # the next of its session may go
            return removed

        return self._database.write(work)

    def tables(self) -> list[str]:
        archive = self._archive
        archived = archive is not None and self._database.read(archive.is_there)
        return [self._table.name, *([archive.table.name] if archive is not None and archived else ())]

    def require_free(self, ids: Mapping[int, str]) -> None:
        def work(connection: Connection) -> None:
            for chunk in chunks(ids.items(), self._database.dialect.chunk):
                self._refuse_held(connection, chunk)

        self._database.read(work)

    def scrub(self, tables: Sequence[str]) -> str | None:
        """As in the contract. Rewrites the whole file of a SQLite store."""
        return scrub(self._database, tables)

    def _these(self, table: Table, some: Sequence[tuple[int, str]]) -> sa.ColumnElement[bool]:
        numbers, names = zip(*some, strict=True)
        among = self._database.dialect.among
        return among(table.c.sequence, numbers) & among(table.c.id, names)

    def _refuse_held(self, connection: Connection, some: Sequence[tuple[int, str]], *, lock: bool = False) -> None:
        c = self._table.c
        rows = sa.select(c.id, c.lock_token, apart(c.time_next)).where(self._these(self._table, some))
        # Locked, who would claim one of them passes over it.
        for message_id, token, until in connection.execute(rows.with_for_update() if lock else rows):
            if token is not None and until > self._database.now():
                raise StillHeldError(
                    f"message {message_id} stays in store {self._name!r}: it is leased until "
                    f"{from_nanoseconds(until):%Y-%m-%d %H:%M:%S} UTC, or longer; try again after that"
                )
