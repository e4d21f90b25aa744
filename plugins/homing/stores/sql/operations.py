"""SqlOperations: the record of operations, in a table beside the store."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from homing.errors import UnreadableMessageError
from homing.excerpts import excerpt
from homing.message import JSON, decode, encode_json
from homing.operation_log import APPROVED, ASKED, BEGUN, OperationEvent, OperationLog
from homing.printable import printable
from homing.row import NANOSECONDS, from_nanoseconds, to_nanoseconds
from homing.stores.sql.database import Database
from homing.stores.sql.schema import operations_table, registry_table, table_name

_LONGEST = {"what": 32, "who": 255, "via": 32, "why": 2_000}  # characters
_MOST_BYTES = 8 * 2**10  # of a selection, and of an outcome


class SqlOperations(OperationLog):
    """The record of operations of one store. It uses the store's connections, and is closed with the store."""

    def __init__(self, database: Database, name: str) -> None:
        self._database = database
        self._table = self.table = operations_table(name)
        self._registry = registry_table()
        self._mine = self._registry.c.name == table_name(name)
        database.require(self._table)

    def append(self, event: OperationEvent) -> bool:
        return self._database.write(lambda connection: self._append(connection, event))

    def append_within(self, event: OperationEvent, most: int, window: float, otherwise: str | None = None) -> bool:
        def work(connection: Connection) -> bool:
            self._take_turns(connection)
            c = self._table.c
            story = set(connection.execute(sa.select(c.event).where(c.operation == event.operation)).scalars())
            if story & {BEGUN, APPROVED}:
                return True
            since = self._database.now() - int(window * NANOSECONDS)
            recent = (c.what == event.what) & (c.event == BEGUN) & (c.time_recorded >= since)
            used = connection.execute(sa.select(sa.func.sum(c.messages)).where(recent)).scalar() or 0
            allowed = ASKED not in story and int(used) + (event.messages or 0) <= most
            said = BEGUN if allowed else otherwise
            if said is not None:
                self._append(connection, replace(event, event=said))
            return allowed

        return self._database.write(work)

    def latest(self, what: str) -> OperationEvent | None:
        found = self._read(self._table.c.what == what, limit=1)
        return found[0] if found else None

    def of(self, operation: str) -> list[OperationEvent]:
        return self._read(self._table.c.operation == operation)

    def since(self, when: datetime | None = None, *, limit: int | None = None) -> list[OperationEvent]:
        after = sa.true() if when is None else self._table.c.time_recorded >= to_nanoseconds(when)
        return self._read(after, limit=limit)

    def _read(self, which: sa.ColumnElement[bool], limit: int | None = None) -> list[OperationEvent]:
        c = self._table.c
        newest_first = sa.select(self._table).where(which).order_by(c.time_recorded.desc(), c.operation, c.event.desc())

        def work(connection: Connection) -> list[OperationEvent]:
            return [_to_event(row) for row in connection.execute(newest_first.limit(limit)).mappings()]

        return self._database.read(work)[::-1]

    def _append(self, connection: Connection, event: OperationEvent) -> bool:
        self._take_turns(connection)
        c = self._table.c
        same = sa.select(c.event).where(c.operation == event.operation, c.event == event.event)
        if connection.execute(same).first() is not None:
            return False
        connection.execute(self._table.insert(), _to_row(event, self._database.now()))
        return True

    def _take_turns(self, connection: Connection) -> None:
        """Two who write about one pipeline do so one after the other, and the second sees what the first wrote."""
        if self._database.dialect.locks_rows:
            connection.execute(sa.select(self._registry.c.name).where(self._mine).with_for_update())


def _to_row(event: OperationEvent, now: int) -> dict[str, Any]:
    texts = {name: _cut(getattr(event, name), longest) for name, longest in _LONGEST.items()}
    values = {name: _written(getattr(event, name)) for name in ("selection", "outcome")}
    known = {"operation": event.operation, "event": event.event, "messages": event.messages, "time_recorded": now}
    return {**known, **texts, **values}


def _cut(text: str | None, longest: int) -> str | None:
    shown = None if text is None else printable(text)
    return shown if shown is None or len(shown) <= longest else f"{shown[: longest - 1]}…"


def _written(value: Any) -> str | None:
    return None if value is None else encode_json(excerpt(value, _MOST_BYTES))


def _to_event(row: Any) -> OperationEvent:
    def read(name: str) -> Any:
        try:
            return None if row[name] is None else decode(JSON, row[name], row["operation"])
        except UnreadableMessageError:
            return None  # plain SQL wrote it: the rest of the story is told all the same

    plain = {name: row[name] for name in ("operation", "event", "what", "who", "via", "why", "messages")}
    at = from_nanoseconds(row["time_recorded"])
    return OperationEvent(**plain, selection=read("selection"), outcome=read("outcome"), at=at)
