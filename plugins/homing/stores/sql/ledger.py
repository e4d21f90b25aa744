"""SqlLedger: the delivery ledger in the database of the pipeline's store."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite
from sqlalchemy.engine import Connection

from homing.errors import LeaseLostError
from homing.ledger import DELIVERED, FAILED, Entry, Fence, Ledger
from homing.message import JSON, decode, encode_json
from homing.stores.sql.database import IN_CHUNK, NANOSECONDS, Database, chunks
from homing.stores.sql.schema import ledger_table, steps_table


class SqlLedger(Ledger):
    """Shares the connections of the store it stands beside, and is closed with it."""

    def __init__(self, database: Database, name: str, *, clock: Callable[[], int] = time.time_ns) -> None:
        self._database = database
        self._clock = clock
        self._rows = ledger_table(name)
        self._steps = steps_table(name)
        database.require(self._rows, self._steps)

    def open_step(self, run_id: str, step: str, lease: float) -> Fence:
        fence = Fence(run_id, step, str(uuid.uuid4()))
        values = {"owner": fence.owner, "time_expires": self._until(lease)}
        statement = (
            sqlite.insert(self._steps)
            .values(run_id=run_id, step=step, **values)
            .on_conflict_do_update(index_elements=["run_id", "step"], set_=values)
        )
        with self._database.writing() as connection:
            connection.execute(statement)
        return fence

    def renew_step(self, fence: Fence, lease: float) -> None:
        with self._database.writing() as connection:
            self._check(connection, fence)
            mine = (self._steps.c.run_id == fence.run_id) & (self._steps.c.step == fence.step)
            connection.execute(self._steps.update().where(mine).values(time_expires=self._until(lease)))

    def close_steps(self, run_id: str) -> None:
        with self._database.writing() as connection:
            connection.execute(self._steps.delete().where(self._steps.c.run_id == run_id))

    def record(self, fence: Fence, entries: Iterable[Entry]) -> None:
        now = self._clock()
        values = [_to_row(entry, fence.run_id, now) for entry in entries]
        if not values:
            return
        with self._database.writing() as connection:
            self._check(connection, fence)
            connection.execute(self._upsert(), values)

    def entries(self, message_ids: Iterable[str]) -> dict[str, dict[str, Entry]]:
        found: dict[str, dict[str, Entry]] = {}
        with self._database.reading() as connection:
            for chunk in chunks(message_ids, IN_CHUNK):
                statement = sa.select(self._rows).where(self._rows.c.message_id.in_(chunk))
                for row in connection.execute(statement).mappings():
                    found.setdefault(row["message_id"], {})[row["flow"]] = _to_entry(row)
        return found

    def unfinished(self, batch_id: str) -> list[str]:
        rows = self._rows
        statement = (
            sa.select(rows.c.message_id)
            .distinct()
            .where(rows.c.batch_id == batch_id, rows.c.state == FAILED)
            .order_by(rows.c.message_id)
        )
        with self._database.reading() as connection:
            return list(connection.execute(statement).scalars())

    def failed_in(self, run_id: str, message_ids: Iterable[str]) -> set[str]:
        rows, found = self._rows, set[str]()
        with self._database.reading() as connection:
            for chunk in chunks(message_ids, IN_CHUNK):
                statement = sa.select(rows.c.message_id).where(
                    rows.c.message_id.in_(chunk), rows.c.state == FAILED, rows.c.run_id == run_id
                )
                found.update(connection.execute(statement).scalars())
        return found

    def _check(self, connection: Connection, fence: Fence) -> None:
        steps = self._steps
        statement = sa.select(steps.c.owner, steps.c.time_expires).where(
            steps.c.run_id == fence.run_id, steps.c.step == fence.step
        )
        row = connection.execute(statement.with_for_update()).first()
        if row is None or row.owner != fence.owner or row.time_expires <= self._clock():
            raise LeaseLostError(
                f"step {fence.step!r} of {fence.run_id} was taken over or its lease ran out; nothing was recorded"
            )

    def _upsert(self) -> sqlite.Insert:
        """Insert, or change the row unless it is done; a second delivery is only counted."""
        rows, insert = self._rows, sqlite.insert(self._rows)
        new, open_row = insert.excluded, rows.c.state == FAILED
        changed: dict[str, sa.ColumnElement[Any]] = {
            name: sa.case((open_row, new[name]), else_=rows.c[name])
            for name in (
                "destination",
                "state",
                "result",
                "error",
                "snapshot",
                "batch_id",
                "run_id",
                "time_recorded",
            )
        }
        changed["attempts"] = rows.c.attempts + new.attempts
        changed["deliveries"] = rows.c.deliveries + new.deliveries
        return insert.on_conflict_do_update(index_elements=["message_id", "flow"], set_=changed)

    def _until(self, lease: float) -> int:
        return self._clock() + int(lease * NANOSECONDS)


def _to_row(entry: Entry, run_id: str, now: int) -> dict[str, Any]:
    return {
        "message_id": entry.message_id,
        "flow": entry.flow,
        "destination": entry.destination or entry.flow,
        "state": entry.state,
        "attempts": entry.attempts,
        "deliveries": 1 if entry.state == DELIVERED else 0,
        "result": None if entry.result is None else encode_json(entry.result),
        "error": None if entry.error is None else encode_json(entry.error),
        "snapshot": None if entry.snapshot is None else encode_json(entry.snapshot),
        "batch_id": entry.batch_id,
        "run_id": run_id,
        "time_recorded": now,
    }


def _to_entry(row: Any) -> Entry:
    def read(name: str) -> Any:
        return None if row[name] is None else decode(JSON, row[name], row["message_id"])

    return Entry(
        message_id=row["message_id"],
        flow=row["flow"],
        state=row["state"],
        destination=row["destination"],
        attempts=row["attempts"],
        result=read("result"),
        error=read("error"),
        snapshot=read("snapshot"),
        batch_id=row["batch_id"],
        deliveries=row["deliveries"],
    )
