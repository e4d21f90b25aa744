"""Looks at a store without claiming anything, and removes finished messages."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy import Table
from sqlalchemy.engine import Connection

from homing.errors import ConfigurationError, UnreadableMessageError
from homing.message import ACKNOWLEDGED, STATES, Message, MessageRef
from homing.pipeline_store import StoreView
from homing.row import HEADERS, NANOSECONDS, READ, is_keepable, legible, read
from homing.stores.sql.archive import Archive
from homing.stores.sql.claim_query import ClaimQuery
from homing.stores.sql.database import Database, chunks
from homing.stores.sql.header_columns import HeaderColumns
from homing.stores.sql.row_sizes import portions_by_id, ranges
from homing.stores.sql.rows import state_of
from homing.stores.validation import check_purged

Result = TypeVar("Result")

_PAGE = 10_000
_LOOKED_AT = 1_000
_PURGE_CHUNK = 5_000


class SqlView(StoreView):
    """A view of one table of messages."""

    def __init__(self, database: Database, table: Table, finder: ClaimQuery, archive: Archive | None) -> None:
        self._database = database
        self._table = table
        self._finder = finder
        self._archive = archive
        self._columns = HeaderColumns.of(table)
        # One statement, so that a message on its way into the archive is seen once, and not twice or never.
        self._all: sa.FromClause = table
        if archive is not None:
            columns = [column.name for column in table.c]
            parts = (sa.select(*(part.c[name] for name in columns)) for part in (table, archive.table))
            self._all = sa.union_all(*parts).subquery("known")

    def _read_all(self, ask: Callable[[Connection, sa.FromClause], Result]) -> Result:
        """What `ask` makes of every message there is, archived ones included."""
        archive = self._archive
        if archive is None:
            return self._database.read(lambda connection: ask(connection, self._table))
        if not archive.seen:
            # In this order: another process may be archiving the first one.
            found, archived = self._database.read(
                lambda connection: (ask(connection, self._table), archive.is_there(connection))
            )
            if not archived:
                return found
        archive.require()  # it may have been created without all columns that this consumer asks for
        return self._database.read(lambda connection: ask(connection, self._all))

    def count(self) -> dict[str, int]:
        def ask(connection: Connection, known: sa.FromClause) -> dict[str, int]:
            state = state_of(known, self._database.now())
            statement = sa.select(state, sa.func.count()).select_from(known).group_by(state)
            return {row[0]: row[1] for row in connection.execute(statement)}

        found = self._read_all(ask)
        return {name: found.get(name, 0) for name in STATES}

    def next_due(self, share: Collection[int] | None = None, partitions: int = 0) -> int | None:
        """When the next message of these partitions, of so many, can be claimed, or could; None when nothing waits.

        What waits for its turn in a session can be once the first of it is finished, which has a time of its own.
        """
        return self._first_time(self._finder.may_go(), self._finder.buckets(share, partitions))

    def _first_time(
        self, which: sa.ColumnElement[bool], buckets: Sequence[sa.ColumnElement[bool]] = (sa.true(),)
    ) -> int | None:
        c = self._table.c

        def work(connection: Connection) -> int | None:
            times = []
            for priority, bucket in product(self._finder.priorities(connection), buckets):
                mine = (c.priority == priority) & bucket & which
                placed = sa.select(c.time_next).where(mine, c.time_next > 0).order_by(c.time_next).limit(1)
                unplaced = sa.select(sa.func.min(c.time_scheduled)).where(mine, c.time_next == 0)
                times += [connection.execute(statement).scalar() for statement in (placed, unplaced)]
            return min((time for time in times if time is not None), default=None)

        return self._database.read(work)

    def has_due(self, share: Collection[int] | None, partitions: int) -> bool:
        due = self.next_due(share, partitions)
        return due is not None and due <= self._database.now()

    def oldest_age(self) -> float | None:
        due, now = self._first_time(sa.true()), self._database.now()
        return None if due is None or due > now else (now - due) / NANOSECONDS

    def browse(
        self, limit: int, state: str | None, after: int, ids: Collection[str] | None, *, written: bool = False
    ) -> list[Message]:
        """`written` leaves the headers as they were stored, whatever the application's columns say."""
        if state is not None and state not in STATES:
            raise ConfigurationError(f"state must be one of {', '.join(STATES)}, got {state!r}")

        def ask(connection: Connection, known: sa.FromClause) -> list[Any]:
            c, states = known.c, state_of(known, self._database.now())
            names = [c[name] for name in READ]
            statement = (
                sa.select(*names, states, *self._columns.selected(known))
                .where(c.sequence > after)
                .order_by(c.sequence)
                .limit(limit)
            )
            if state is not None:
                statement = statement.where(states == state)
            if ids is None:
                return list(connection.execute(statement))
            found: list[Any] = []
            for chunk in chunks(filter(is_keepable, ids), self._database.dialect.chunk):
                found += connection.execute(statement.where(self._database.dialect.among(c.id, chunk)))
            return sorted(found, key=lambda row: row.sequence)[:limit]

        columns = HeaderColumns({}) if written else self._columns
        return [_look(row, columns) for row in self._read_all(ask)]

    def look(self, ids: Collection[str] | None = None) -> Iterator[Message]:
        c = self._table.c
        open_ones = (c.time_acked.is_(None),)
        if ids is None:
            for start, end in ranges(self._database, self._table, open_ones, after=0, upto=None, page=_LOOKED_AT):
                yield from self._look_at((*open_ones, c.sequence > start, c.sequence <= end))
            return
        for numbers in portions_by_id(self._database, self._table, open_ones, list(ids)):
            yield from self._look_at((*open_ones, self._database.dialect.among(c.sequence, numbers)))

    def _look_at(self, where: Sequence[Any]) -> Iterator[Message]:
        c = self._table.c
        states = state_of(self._table, self._database.now())
        names = [c[name] for name in READ]
        statement = sa.select(*names, states, *self._columns.selected(self._table)).where(*where).order_by(c.sequence)
        found = self._database.read(lambda connection: list(connection.execute(statement)))
        while found:
            yield _look(found.pop(0), self._columns)  # and keeps it no longer

    def states(self, ids: Collection[str] | None = None) -> Iterator[tuple[str, str, MessageRef]]:
        after = 0

        def ask(connection: Connection, known: sa.FromClause) -> list[Any]:
            c, state = known.c, state_of(known, self._database.now())
            page = sa.select(c.sequence, c.id, state, c.table_id).where(c.sequence > after).order_by(c.sequence)
            if ids is None:
                return list(connection.execute(page.limit(_PAGE)))
            dialect = self._database.dialect
            named = (connection.execute(page.where(dialect.among(c.id, some))) for some in chunks(ids, dialect.chunk))
            return sorted((row for some in named for row in some), key=lambda row: row.sequence)

        while True:
            found = self._read_all(ask)
            yield from ((row.id, row.state, MessageRef.of(row.table_id, row.sequence, row.id)) for row in found)
            if ids is not None:
                return
            if len(found) < _PAGE:
                return
            after = found[-1][0]

    def overdue(self, seconds: float) -> list[str]:
        c = self._table.c
        since = self._database.now() - int(seconds * NANOSECONDS)
        statement = sa.select(c.id).where(c.time_next <= since).order_by(c.time_next)
        return self._database.read(lambda connection: list(connection.execute(statement).scalars()))

    def present(self, ids: Collection[str]) -> set[str]:
        c = self._table.c

        def work(connection: Connection) -> set[str]:
            found = set[str]()
            for chunk in chunks(ids, self._database.dialect.chunk):
                mine = self._database.dialect.among(c.id, chunk)
                found.update(connection.execute(sa.select(c.id).where(mine, c.time_acked.is_(None))).scalars())
            return found

        return self._database.read(work)

    def batches_of(self, ids: Collection[str]) -> dict[str, str]:
        c = self._table.c

        def work(connection: Connection) -> dict[str, str]:
            found: dict[str, str] = {}
            for chunk in chunks(ids, self._database.dialect.chunk):
                statement = sa.select(c.id, c.batch_id).where(self._database.dialect.among(c.id, chunk))
                found.update(
                    (row.id, row.batch_id) for row in connection.execute(statement) if row.batch_id is not None
                )
            return found

        return self._database.read(work)

    def expired_batches(self, seconds: float) -> list[str]:
        c, since = self._table.c, self._database.now() - int(seconds * NANOSECONDS)
        left = c.lock_token.is_not(None) & c.batch_id.is_not(None) & (c.time_next <= since)
        statement = sa.select(c.batch_id).distinct().where(left).order_by(c.batch_id)
        return self._database.read(lambda connection: list(connection.execute(statement).scalars()))

    def purgeable(self, older_than: float, state: str) -> int:
        until = self._database.now() - int(older_than * NANOSECONDS)

        def ask(connection: Connection, known: sa.FromClause) -> int:
            since = known.c.time_acked if state == ACKNOWLEDGED else known.c.time_dead
            statement = sa.select(sa.func.count()).select_from(known)
            return int(connection.execute(statement.where(since <= until, known.c.time_next.is_(None))).scalar_one())

        return self._read_all(ask)

    def purge(self, older_than: float, state: str) -> int:
        """Removes finished messages in chunks, each a transaction of its own, so that no other transaction waits for
        long."""
        check_purged(state)
        c, until = self._table.c, self._database.now() - int(older_than * NANOSECONDS)
        since = c.time_acked if state == ACKNOWLEDGED else c.time_dead
        finished, removed, after = (since <= until) & c.time_next.is_(None), 0, 0
        if self._archive is not None and state == ACKNOWLEDGED:
            removed = self._archive.purge(until)
        while True:
            # Along the primary key, up to messages too young to be finished for so long: no index is kept for this.
            page = sa.select(c.sequence, c.time_created).where(c.sequence > after).order_by(c.sequence)
            page = page.limit(_PURGE_CHUNK)
            seen = self._database.read(lambda connection, page=page: connection.execute(page).all())  # type: ignore[misc]
            if not seen or min(row.time_created for row in seen) > until:
                return removed
            span = (c.sequence > after) & (c.sequence <= seen[-1].sequence)
            gone = self._table.delete().where(span, finished)
            removed += self._database.write(lambda connection, gone=gone: connection.execute(gone).rowcount)  # type: ignore[misc]
            after = seen[-1].sequence


def _look(row: Any, columns: HeaderColumns) -> Message:
    (merged,) = columns.merge_all([tuple(row)], HEADERS)
    values = merged[: len(READ)]
    try:
        message = read(values, row.lock_token)
    except UnreadableMessageError:
        message = read(legible(values), row.lock_token)
    return replace(message, state=row.state)
