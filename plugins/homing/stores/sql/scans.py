"""Reading a table of messages part by part, without claiming anything."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Table

from homing.errors import ConfigurationError
from homing.row import HEADERS, PLAIN, READ
from homing.scans import ALL, DEAD, PATIENCE, WAITING, Condition, Scans
from homing.store import BatchLease
from homing.stores.sql.batches import Batches
from homing.stores.sql.commit_horizon import settled
from homing.stores.sql.database import Database, fetch
from homing.stores.sql.header_columns import HeaderColumns
from homing.stores.sql.row_sizes import ranges
from homing.stores.sql.rows import beyond_plain

_OPERATORS: Mapping[str, Callable[[Any, Any], Any]] = {
    "=": lambda column, value: column == value,
    "<": lambda column, value: column < value,
    "<=": lambda column, value: column <= value,
    ">": lambda column, value: column > value,
    ">=": lambda column, value: column >= value,
    "in": lambda column, value: column.in_(list(value)),
    "is null": lambda column, _: column.is_(None),
    "is not null": lambda column, _: column.is_not(None),
}


class SqlScans(Scans):
    """Reads one table."""

    def __init__(self, database: Database, table: Table, batches: Batches) -> None:
        self._database = database
        self._table = table
        self._batches = batches

    def pages(
        self,
        columns: Sequence[str],
        after: int,
        upto: int,
        *,
        which: str = ALL,
        conditions: Sequence[Condition] = (),
        page: int = 1000,
    ) -> Iterator[Sequence[tuple[Any, ...]]]:
        wanted, mine = [self._table.c[name] for name in columns], self._wanted(which, conditions)
        while found := self._page(wanted, after, upto, mine, page):
            yield found
            if len(found) < page:
                return
            after = found[-1][0]

    def message_pages(
        self, after: int, upto: int, *, which: str = ALL, conditions: Sequence[Condition] = (), page: int = 1000
    ) -> Iterator[Sequence[tuple[Any, ...]]]:
        c, mine = self._table.c, self._wanted(which, conditions)
        own = HeaderColumns.of(self._table)
        last = (c.table_id, c.batch_id, *own.selected(self._table))
        plain: Sequence[Any] = [*(c[name] for name in PLAIN), beyond_plain(self._table), *last]
        whole = [*(c[name] for name in READ), *last]
        columns = plain
        for start, end in ranges(self._database, self._table, mine, after=after, upto=upto, page=page):
            found = self._page(columns, start, end, mine, page)
            if columns is plain and any(row[len(PLAIN)] is not None for row in found):
                columns = whole  # the same page once more, and all that follow
                found = self._page(columns, start, end, mine, page)
            if found:
                yield own.merge_all(list(found), HEADERS)

    def _page(
        self, columns: Sequence[Any], after: int, upto: int, mine: Sequence[Any], page: int
    ) -> Sequence[tuple[Any, ...]]:
        sequence = self._table.c.sequence
        statement = sa.select(*columns).where(*mine, sequence > after, sequence <= upto).order_by(sequence).limit(page)
        return self._database.read(lambda connection: fetch(connection, statement))

    def span(self, which: str = ALL, conditions: Sequence[Condition] = ()) -> tuple[int, int] | None:
        c = self._table.c
        statement = sa.select(sa.func.min(c.sequence), sa.func.max(c.sequence)).where(*self._wanted(which, conditions))
        first, last = self._database.read(lambda connection: connection.execute(statement).one())
        return None if first is None else (first, last)

    def newest(self, after: int, *, limit: int | None = None, patience: float = PATIENCE) -> int:
        """As in the contract. PostgreSQL does not tell which numbers an open transaction will bring: none count then,
        unless it ends within `patience` seconds."""
        c = self._table.c
        upto = settled(self._database, self._table, after, patience)
        numbers = sa.select(c.sequence).where(c.sequence > after, c.sequence <= upto).order_by(c.sequence)
        if limit is not None:
            numbers = numbers.limit(limit)
        last = sa.select(sa.func.max(numbers.subquery().c.sequence))
        return self._database.read(lambda connection: connection.execute(last).scalar()) or after

    def batch_ranges(self, held: BatchLease, parts: int) -> list[tuple[int, int]]:
        return self._batches.ranges(held, parts)

    def _wanted(self, which: str, conditions: Sequence[Condition]) -> list[Any]:
        c = self._table.c
        if which not in (WAITING, DEAD, ALL):
            raise ConfigurationError(f"messages to read must be one of {WAITING}, {DEAD}, {ALL}, got {which!r}")
        wanted = {WAITING: [c.time_acked.is_(None), c.time_dead.is_(None)], DEAD: [c.time_dead.is_not(None)], ALL: []}
        return [*wanted[which], *(_OPERATORS[each.operator](c[each.column], each.value) for each in conditions)]
