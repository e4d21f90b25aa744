"""Roles: what producers, consumers, operators and auditors may do in a database, as GRANT statements of PostgreSQL.

    producer    stores messages; reads none, its own included
    consumer    runs a pipeline or a listener: claims, settles, keeps the ledger, dead-letters
    operator    a consumer who also changes things by hand, which is written down as operations
    auditor     reads everything, and changes nothing

None of them makes or changes tables. The owner of the tables does that, with `homing init`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy import Table
from sqlalchemy.engine import Connection

from homing.errors import ConfigurationError
from homing.pipeline_store import AUDITOR, CONSUMER, OPERATOR, PRODUCER
from homing.stores.sql import archive_days

_WORK = ("SELECT", "INSERT", "UPDATE", "DELETE")
_LONGEST_NAME = 63  # bytes, on PostgreSQL
# Producers do not decide what becomes of a message.
_FATE = {
    *("sequence", "time_acked", "time_dead", "epoch", "crashes", "lock_token", "batch_id", "table_id"),
    *("dead_letter_reason", "dead_letter_description", "dead_letter_source"),
}


@dataclass(frozen=True)
class StoreTables:
    """The tables of one store.

    `beside` are the tables of its ledger, if it has one. `forgets` says that storing may remove a message so that its
    id can be used again, as it may with `duplicate_window`.
    """

    messages: Table
    registry: Table
    archive: Table | None = None
    beside: Sequence[Table] = ()
    operations: Table | None = None
    forgets: bool = False


@dataclass(frozen=True)
class Right:
    """The right to do something with a table (or with some of its columns), a sequence or a function."""

    privileges: tuple[str, ...]
    kind: str
    name: str
    columns: tuple[str, ...] = ()

    def granted_to(self, role: str) -> str:
        columns = f" ({', '.join(map(_quoted, self.columns))})" if self.columns else ""
        name = self.name if self.kind == "FUNCTION" else _quoted(self.name)
        privileges = ", ".join(f"{privilege}{columns}" for privilege in self.privileges)
        return f"GRANT {privileges} ON {self.kind} {name} TO {role}"

    def __str__(self) -> str:
        return f"{', '.join(self.privileges)} on {self.name}"


def grants(role: str, tables: StoreTables, to: str) -> list[str]:
    """The statements that let the database's role `to` play this one in a store. Raises ConfigurationError for a name
    that no role of a database has."""
    if not to or "\0" in to or len(to.encode()) > _LONGEST_NAME:
        raise ConfigurationError(f"the name of a database's role must have 1 to {_LONGEST_NAME} bytes, got {to!r:.80}")
    return [right.granted_to(_quoted(to)) for right in rights(role, tables)]


def rights(role: str, tables: StoreTables) -> list[Right]:
    return list({PRODUCER: _produce, CONSUMER: _consume, OPERATOR: _operate, AUDITOR: _audit}[role](tables))


def lacking(connection: Connection, wanted: Sequence[Right]) -> list[Right]:
    """Those of these rights that the connection's user does not have."""
    asked = [(right, privilege) for right in wanted for privilege in right.privileges]
    answers = connection.execute(sa.select(*(_has(*each).label(f"a{n}") for n, each in enumerate(asked)))).one()
    return list(dict.fromkeys(right for (right, _), has in zip(asked, answers, strict=True) if not has))


def _produce(tables: StoreTables) -> Iterator[Right]:
    messages = tables.messages
    yield Right(("SELECT",), "TABLE", tables.registry.name)
    yield Right(("INSERT",), "TABLE", messages.name, tuple(c.name for c in messages.c if c.name not in _FATE))
    known = ("id", "sequence", *(("time_created", "time_acked") if tables.forgets else ()))
    yield Right(("SELECT",), "TABLE", messages.name, known)
    yield _count(messages)
    if tables.forgets:
        yield Right(("DELETE",), "TABLE", messages.name)


def _consume(tables: StoreTables) -> Iterator[Right]:
    yield Right(("SELECT",), "TABLE", tables.registry.name)
    # Claiming for a batch locks the store's row there.
    yield Right(("UPDATE",), "TABLE", tables.registry.name, ("properties",))
    for table in (tables.messages, *tables.beside, *([tables.archive] if tables.archive is not None else [])):
        yield Right(_WORK, "TABLE", table.name)
    yield _count(tables.messages)
    if tables.archive is not None:
        yield Right(("EXECUTE",), "FUNCTION", archive_days.signature(tables.archive))
    if tables.operations is not None:
        yield Right(("SELECT",), "TABLE", tables.operations.name)


def _operate(tables: StoreTables) -> Iterator[Right]:
    yield from _consume(tables)
    if tables.operations is not None:
        yield Right(("INSERT",), "TABLE", tables.operations.name)


def _audit(tables: StoreTables) -> Iterator[Right]:
    others = [table for table in (tables.archive, tables.operations) if table is not None]
    for table in (tables.registry, tables.messages, *tables.beside, *others):
        yield Right(("SELECT",), "TABLE", table.name)


def _count(messages: Table) -> Right:
    """To number what is stored."""
    return Right(("USAGE",), "SEQUENCE", f"{messages.name}_sequence_seq")


def _has(right: Right, privilege: str) -> sa.ColumnElement[bool]:
    if right.kind == "FUNCTION":
        return sa.func.has_function_privilege(right.name, privilege)
    name = _quoted(right.name)
    if right.kind == "SEQUENCE":
        return sa.func.has_sequence_privilege(name, privilege)
    if not right.columns:
        return sa.func.has_table_privilege(name, privilege)
    return sa.and_(*(sa.func.has_column_privilege(name, column, privilege) for column in right.columns))


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
