"""Batches: many messages under one lease, read as rows. The delivery protocol uses them so."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Table
from sqlalchemy.engine import Connection

from homing.errors import LeaseLostError
from homing.portions import portions
from homing.store import BatchLease
from homing.stores.sql.archive import Archive
from homing.stores.sql.database import Database, chunks, fetch
from homing.stores.sql.header_columns import HeaderColumns
from homing.stores.sql.row_sizes import portions_by_id, ranges, weight, weight_of
from homing.stores.sql.schema import NEVER, apart

#: Prefix of replacement ids for rows whose id is not text; the sequence number follows.
_RENAMED = "homing-no-text-"
_DEAD_PAGE = 1000


class Batches:
    """Reads the messages that a batch holds in one table."""

    def __init__(self, database: Database, table: Table, name: str, archive: Archive | None) -> None:
        self._database = database
        self._table = table
        self._name = name
        self._archive = archive
        self._columns = HeaderColumns.of(table)
        self._names = [name for name in table.c.keys() if name not in self._columns.kinds]  # noqa: SIM118

    def knows(self, batch_id: str) -> bool:
        def work(connection: Connection) -> bool:
            if connection.execute(self._one_of, {"batch": batch_id}).first() is not None:
                return True
            return self._archive is not None and self._archive.knows(connection, batch_id)

        return self._database.read(work)

    def held(self, batch_id: str) -> BatchLease | None:
        values = {"batch": batch_id, "now": self._database.now()}
        token, size, *most = self._database.read(lambda connection: connection.execute(self._held, values).one())
        return BatchLease(batch_id, token, size, new=most == [1, 0]) if size else None

    # A run asks these again and again, and to make a statement takes longer than to ask it.

    @cached_property
    def _one_of(self) -> sa.Select[Any]:
        c = self._table.c
        return sa.select(c.sequence).where(c.batch_id == sa.bindparam("batch")).limit(1)

    @cached_property
    def _held(self) -> sa.Select[Any, int, Any, Any]:
        c = self._table.c
        return (
            sa.select(sa.func.min(c.lock_token), sa.func.count(), sa.func.max(c.epoch), sa.func.max(c.crashes))
            .where(c.batch_id == sa.bindparam("batch"), c.lock_token.is_not(None))
            .where(c.time_next > sa.bindparam("now"))
        )

    def rows(self, held: BatchLease, after: int, upto: int | None, page: int) -> Iterator[dict[str, Any]]:
        """A portion at a time, whatever `page` says: rows may be long."""
        mine = self._mine(held)
        for start, end in ranges(self._database, self._table, mine, after=after, upto=upto, page=page):
            inside = (self._table.c.sequence > start, self._table.c.sequence <= end)
            yield from self._whole((*mine, *inside))

    def some_rows(self, held: BatchLease, ids: Collection[str]) -> Iterator[dict[str, Any]]:
        mine = self._mine(held)
        for numbers in portions_by_id(self._database, self._table, mine, list(ids)):
            yield from self._whole((self._database.dialect.among(self._table.c.sequence, numbers), *mine))

    def _whole(self, where: Sequence[Any]) -> Iterator[dict[str, Any]]:
        c, names = self._table.c, self._names
        columns = [*(c[name] for name in names), *self._columns.selected(self._table)]
        statement = sa.select(*columns).where(*where).order_by(c.sequence)
        found = self._database.read(lambda connection: fetch(connection, statement))
        headers = names.index("headers")
        while found:
            (row,) = self._columns.merge_all([found.pop(0)], headers)
            yield dict(zip(names, row, strict=True))  # and keeps it no longer

    def ranges(self, held: BatchLease, parts: int) -> list[tuple[int, int]]:
        c = self._table.c
        everything = c.batch_id == held.batch_id
        size = -(-held.size // max(1, parts))

        def work(connection: Connection) -> list[tuple[int, int]]:
            # Mostly all of the batch is held, and then its index is enough: no row has to be looked at.
            whole = connection.execute(sa.select(sa.func.count()).where(everything)).scalar() == held.size
            mine = sa.select(c.sequence).where(*((everything,) if whole else self._mine(held)))
            last = connection.execute(mine.order_by(c.sequence.desc()).limit(1)).scalar()
            if last is None:
                return []
            cuts = [connection.execute(mine.order_by(c.sequence).limit(1)).scalar_one() - 1]
            # From one cut to the next: to number all rows, or to fetch their numbers, takes several times as long.
            while cuts[-1] < last:
                rest = mine.where(c.sequence > cuts[-1]).order_by(c.sequence).offset(size - 1).limit(1)
                cuts.append(connection.execute(rest).scalar() or last)
            return list(pairwise(cuts))

        return self._database.read(work)

    def renew(self, held: BatchLease, until: int) -> None:
        """Holds the batch until then; raises LeaseLostError if it was not held any more."""
        where = (*self._mine(held), self._table.c.time_next > self._database.now())
        statement = self._table.update().where(*where).values(time_next=until)
        if not self._database.write(lambda connection: connection.execute(statement).rowcount):
            raise self._lost(held)

    def count_crash(self, held: BatchLease, ids: Collection[str]) -> None:
        c = self._table.c

        def work(connection: Connection) -> None:
            for chunk in chunks(set(ids), self._database.dialect.chunk):
                mine = (self._database.dialect.among(c.id, chunk), *self._mine(held))
                connection.execute(self._table.update().where(*mine).values(crashes=c.crashes + 1))

        self._database.write(work)

    def forget(self, held: BatchLease, ids: Collection[str]) -> None:
        """Removes these; raises LeaseLostError, and changes nothing, unless all of them were held."""
        c, wanted = self._table.c, set(ids)

        def work(connection: Connection) -> bool:
            gone = 0
            for chunk in chunks(wanted, self._database.dialect.chunk):
                where = (
                    self._database.dialect.among(c.id, chunk),
                    *self._mine(held),
                    c.time_next > self._database.now(),
                )
                gone += connection.execute(self._table.delete().where(*where)).rowcount
            if gone != len(wanted):
                connection.rollback()
            return gone == len(wanted)

        if wanted and not self._database.write(work):
            raise self._lost(held)

    def rename(self, held: BatchLease | None, dead_letter: Callable[[str], Mapping[str, Any]]) -> int:
        """Gives messages of this batch, or without one the dead ones, whose ids are no texts another id, and makes them
        what `dead_letter` returns; returns how many.

        Nothing could be recorded or settled for them otherwise: a ledger, and every column of ids, holds texts.
        """
        c = self._table.c
        octets = sa.cast(c.id, sa.LargeBinary)
        # Most ids are plain ASCII, and need no second look. A text seems to end at its first NUL.
        foreign = sa.func.glob("*[^ -~]*", c.id) == 1
        cut = sa.func.length(octets) != sa.func.length(c.id)
        mine = (c.time_dead.is_not(None),) if held is None else self._mine(held)
        doubtful = (sa.func.typeof(c.id) != "text") | foreign | cut
        statement = sa.select(c.sequence, octets, sa.func.typeof(c.id)).where(*mine, doubtful)

        def work(connection: Connection) -> int:
            renamed = 0
            for sequence, written, kind in connection.execute(statement).all():
                if kind == "text" and _is_text(written):
                    continue
                values = {"id": f"{_RENAMED}{sequence}", **dead_letter(f"its id is not text: X'{written.hex()[:100]}'")}
                connection.execute(self._table.update().where(c.sequence == sequence).values(**values))
                renamed += 1
            return renamed

        return self._database.write(work)

    def dead(self, skip: int) -> list[dict[str, Any]]:
        c = self._table.c
        oldest_first = sa.select(c.sequence, weight(self._table)).where(c.time_dead.is_not(None)).order_by(c.time_dead)
        page = oldest_first.offset(skip).limit(_DEAD_PAGE)
        weights = self._database.read(lambda connection: fetch(connection, page))
        portion = next(portions(weights, weight_of), [])
        numbers = self._database.dialect.among(c.sequence, [number for number, _ in portion])
        return list(self._whole((numbers, c.time_dead.is_not(None)))) if portion else []

    def finish_dead(self, ids: Collection[str]) -> None:
        c = self._table.c

        def work(connection: Connection) -> None:
            for chunk in chunks(ids, self._database.dialect.chunk):
                where = self._database.dialect.among(c.id, chunk) & (apart(c.time_dead) != NEVER)
                values = {"time_acked": self._database.now(), "time_dead": None}
                connection.execute(self._table.update().where(where).values(**values))

        self._database.write(work)

    def _lost(self, held: BatchLease) -> LeaseLostError:
        return LeaseLostError(f"the lease on batch {held.batch_id} in store {self._name!r} ran out or was taken")

    def _mine(self, held: BatchLease) -> tuple[sa.ColumnElement[bool], ...]:
        c = self._table.c
        # Plain SQL that acknowledges a message leaves its token where it is.
        return c.batch_id == held.batch_id, c.lock_token == held.lock_token, c.time_next.is_not(None)


def _is_text(written: bytes) -> bool:
    try:
        return "\0" not in written.decode()
    except UnicodeDecodeError:
        return False
