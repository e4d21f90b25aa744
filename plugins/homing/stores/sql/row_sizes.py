"""Weights: asks the database how many bytes the contents of rows have, before it sends them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Table
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from homing.portions import portions
from homing.stores.sql.database import Database, chunks, fetch
from homing.stores.sql.header_columns import OWN


class Octets(FunctionElement[int]):
    """How many bytes a text has. PostgreSQL knows without reading it."""

    type = sa.BigInteger()
    inherit_cache = True


@compiles(Octets)
def _octets(element: Octets, compiler: Any, **options: Any) -> str:
    return f"octet_length({compiler.process(element.clauses, **options)})"


@compiles(Octets, "sqlite")
def _sqlite_octets(element: Octets, compiler: Any, **options: Any) -> str:
    return f"length(CAST({compiler.process(element.clauses, **options)} AS BLOB))"


def weight(table: Table) -> sa.ColumnElement[int]:
    """What a row's content and headers weigh, and what becomes a header: all else on it is short."""
    c, own = table.c, table.info.get(OWN, {})
    documents = [sa.cast(c[name], sa.Text) for name, kind in own.items() if kind == "json"]
    total: sa.ColumnElement[int] = Octets(c.message)
    for text in (c.headers, *documents):
        total = total + sa.func.coalesce(Octets(text), sa.literal_column("0"))
    return total


def ranges(
    database: Database, table: Table, mine: Sequence[Any], *, after: int, upto: int | None, page: int
) -> Iterator[tuple[int, int]]:
    """Ranges (after, upto] of sequence numbers that have these rows in order, a portion of at most `page` in each."""
    sequence = table.c.sequence
    statement = sa.select(sequence, weight(table)).where(*mine).order_by(sequence).limit(page)
    if upto is not None:
        statement = statement.where(sequence <= upto)
    while True:
        one = statement.where(sequence > after)
        found = database.read(lambda connection, one=one: fetch(connection, one))  # type: ignore[misc]
        for portion in portions(found, weight_of):
            yield after, portion[-1][0]
            after = portion[-1][0]
        if len(found) < page:
            return


def portions_by_id(database: Database, table: Table, mine: Sequence[Any], ids: Sequence[str]) -> Iterator[list[int]]:
    """The sequence numbers of those of these rows that have one of these ids, a portion at a time."""
    c = table.c
    weighed = sa.select(c.sequence, weight(table)).where(*mine).order_by(c.sequence)
    for chunk in chunks(ids, database.dialect.chunk):
        one = weighed.where(database.dialect.among(c.id, chunk))
        found = database.read(lambda connection, one=one: fetch(connection, one))  # type: ignore[misc]
        for portion in portions(found, weight_of):
            yield [row[0] for row in portion]


def weight_of(row: Sequence[Any]) -> int:
    """The weight behind a sequence number; 0 for a row of another program that has none."""
    return row[1] if isinstance(row[1], int) else 0
