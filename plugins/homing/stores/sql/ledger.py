"""SqlLedger: the delivery ledger in the database of the pipeline's store."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import datetime
from functools import cached_property
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from homing.errors import LeaseLostError, UnreadableMessageError
from homing.excerpts import MOST_BYTES, excerpt
from homing.ids import new_id
from homing.ledger import DELIVERED, DONE_STATES, FAILED, PART, PROCESSED, Entry, Fence, Ledger, LedgerEntries
from homing.message import JSON, MessageRef, decode, encode_json
from homing.portions import text_bytes
from homing.row import NANOSECONDS, from_nanoseconds
from homing.stores.sql.database import Database, chunks
from homing.stores.sql.schema import ledger_table, steps_table, work_table
from homing.stores.sql.tombstones import SqlTombstones

_OLD = 1000  # rows that are looked at at once when old ones are removed
_SHOWN = 200  # characters of an error that is not JSON
_KEYS = ("message_id", "table_id", "sequence", "flow")
# What a later record replaces as long as the row is not done.
_REPLACED = ("destination", "result", "error", "snapshot", "batch_id", "run_id")


class SqlLedger(Ledger):
    """The ledger of one store. It uses the store's connections, and is closed with the store."""

    def __init__(self, database: Database, name: str) -> None:
        self._database = database
        self._rows, self._steps, self._work = ledger_table(name), steps_table(name), work_table(name)
        self._by_time = ledger_table(name, by_time=True)
        database.require(self._rows, self._steps, self._work)
        self.tombstones = SqlTombstones(database, name)
        self.tables = (self._rows, self._steps, self._work, self.tombstones.table)

    def open_step(self, run_id: str, step: str, lease: float) -> Fence:
        steps, owner = self._steps.c, new_id()
        before = sa.select(steps.suspect).where(steps.run_id == run_id, steps.step == step).with_for_update()
        values = {"run_id": run_id, "step": step, "owner": owner, "time_expires": self._until(lease), "suspect": None}
        take = self._database.dialect.upsert(self._steps, ["run_id", "step"])

        def work(connection: Connection) -> Fence:
            found = connection.execute(before).first()
            connection.execute(take, [values])
            return Fence(run_id, step, owner, crashed=found is not None, suspect=found.suspect if found else None)

        return self._database.write(work)

    def renew_step(self, fence: Fence, lease: float) -> None:
        def work(connection: Connection) -> None:
            self._check(connection, fence)
            connection.execute(self._steps.update().where(self._mine(fence)).values(time_expires=self._until(lease)))

        self._database.write(work)

    def is_open(self, run_id: str, step: str) -> bool:
        c = self._steps.c
        mine = (c.run_id == run_id) & (c.step == step) & (c.time_expires > self._database.now())
        found = self._database.read(lambda connection: connection.execute(sa.select(c.owner).where(mine)).first())
        return found is not None

    def suspect(self, fence: Fence, suspect: str | None, entries: Iterable[Entry] = ()) -> None:
        values = [_to_row(entry, fence.run_id, self._database.now()) for entry in entries]

        def work(connection: Connection) -> None:
            self._check(connection, fence)
            self._write(connection, values)
            connection.execute(self._steps.update().where(self._mine(fence)).values(suspect=suspect))

        self._database.write(work)

    def close_step(self, fence: Fence) -> None:
        statement = self._steps.delete().where(self._mine(fence), self._steps.c.owner == fence.owner)
        self._database.write(lambda connection: connection.execute(statement))

    def left_open(self, run_id: str) -> list[str]:
        statement = sa.select(self._steps.c.step).where(self._steps.c.run_id == run_id).order_by(self._steps.c.step)
        names = self._database.read(lambda connection: list(connection.execute(statement).scalars()))
        return [name for name in names if not name.startswith(PART)]

    def close_steps(self, run_id: str) -> None:
        def work(connection: Connection) -> None:
            for table in (self._steps, self._work):
                connection.execute(table.delete().where(table.c.run_id == run_id))

        self._database.write(work)

    def publish(self, fence: Fence, files: Mapping[str, str]) -> None:
        values = {"run_id": fence.run_id, "files": encode_json(dict(files))}
        replace = self._database.dialect.upsert(self._work, ["run_id"])

        def work(connection: Connection) -> None:
            self._check(connection, fence)
            connection.execute(replace, [values])

        self._database.write(work)

    def published(self, run_id: str) -> dict[str, str] | None:
        statement = sa.select(self._work.c.files).where(self._work.c.run_id == run_id)
        text = self._database.read(lambda connection: connection.execute(statement).scalar())
        try:
            return None if text is None else msgspec.json.decode(text, type=dict[str, str])
        except msgspec.MsgspecError:
            return None  # written by another program: the step is done again

    def record(self, fence: Fence, entries: Iterable[Entry]) -> None:
        now = self._database.now()
        values = [_to_row(entry, fence.run_id, now) for entry in entries]

        def work(connection: Connection) -> None:
            self._check(connection, fence)
            self._write(connection, values)

        self._database.write(work)

    def known(self, message_ids: Iterable[str]) -> LedgerEntries:
        dialect = self._database.dialect
        ids = list(message_ids)

        def work(connection: Connection) -> LedgerEntries:
            found: LedgerEntries = {}
            for chunk in chunks(ids, dialect.chunk):
                statement = sa.select(self._rows).where(dialect.among(self._rows.c.message_id, chunk))
                for row in connection.execute(statement).mappings():
                    entry = _to_entry(row)
                    found.setdefault(entry.ref, {})[entry.flow] = entry
            return found

        return self._database.read(work)

    def unfinished(self, batch_id: str) -> list[MessageRef]:
        return self._refs(self._rows.c.batch_id == batch_id, self._rows.c.state == FAILED)

    def of_batch(self, batch_id: str, limit: int) -> list[MessageRef]:
        return self._refs(self._rows.c.batch_id == batch_id, limit=limit)

    # -- removing ----------------------------------------------------------------------------------------------

    @property
    def table_name(self) -> str:
        return self._rows.name

    def done_before(self, seconds: float) -> Iterator[list[MessageRef]]:
        c, after, until = self._rows.c, 0, self._database.now() - int(seconds * NANOSECONDS)
        self._database.make(self._by_time)
        while after < until:
            times = sa.select(c.time_recorded).where(c.time_recorded > after, c.time_recorded <= until)
            last = times.order_by(c.time_recorded).offset(_OLD - 1).limit(1)
            end = self._database.read(lambda connection, last=last: connection.execute(last).scalar())  # type: ignore[misc]
            upto = until if end is None else end
            old = self._refs(c.time_recorded > after, c.time_recorded <= upto, c.state.in_(DONE_STATES))
            yield self._only_done(old, until)
            after = upto

    def _only_done(self, refs: list[MessageRef], until: int) -> list[MessageRef]:
        """Those of these messages that have no other row than such as are done, and as old."""
        c, dialect = self._rows.c, self._database.dialect
        kept = c.state.not_in(DONE_STATES) | (c.time_recorded > until)

        def work(connection: Connection) -> list[MessageRef]:
            others = set[MessageRef]()
            for chunk in chunks({ref.id for ref in refs}, dialect.chunk):
                rows = sa.select(c.table_id, c.sequence, c.message_id).where(dialect.among(c.message_id, chunk), kept)
                others.update(MessageRef(*row) for row in connection.execute(rows))
            return [ref for ref in refs if ref not in others]

        return self._database.read(work) if refs else []

    def remove(self, refs: Collection[MessageRef]) -> int:
        c, steps, wanted = self._rows.c, self._steps, set(refs)
        there = sa.select(c.table_id, c.sequence, c.message_id)
        keys = {"old_table_id": c.table_id, "old_sequence": c.sequence, "old_id": c.message_id}
        gone = self._rows.delete().where(*(column == sa.bindparam(key) for key, column in keys.items()))
        suspected = sa.select(steps.c.run_id, steps.c.step, steps.c.suspect).where(steps.c.suspect.is_not(None))

        def work(connection: Connection) -> int:
            removed = 0
            for chunk in chunks({ref.id for ref in wanted}, self._database.dialect.chunk):
                rows = connection.execute(there.where(self._database.dialect.among(c.message_id, chunk)))
                found = [ref for row in rows if (ref := MessageRef(*row)) in wanted]
                removed += len(found)
                if found:
                    connection.execute(gone, [dict(zip(keys, ref, strict=True)) for ref in set(found)])
            # Who died with one of them in hand is not asked for it later: it would be recorded again, as failed.
            for run_id, step, suspect in connection.execute(suspected).all():
                if _in_hand(suspect) in wanted:
                    connection.execute(steps.delete().where(steps.c.run_id == run_id, steps.c.step == step))
            return removed

        return self._database.write(work)

    def busy_until(self, run_ids: Collection[str]) -> datetime | None:
        if not run_ids:
            return None
        c = self._steps.c
        mine = self._database.dialect.among(c.run_id, list(run_ids))
        latest = sa.select(sa.func.max(c.time_expires)).where(mine, c.time_expires > self._database.now())
        until = self._database.read(lambda connection: connection.execute(latest).scalar())
        return from_nanoseconds(until) if until else None

    def _refs(self, *which: sa.ColumnElement[bool], limit: int | None = None) -> list[MessageRef]:
        c = self._rows.c
        statement = sa.select(c.table_id, c.sequence, c.message_id).distinct().where(*which)
        statement = statement.order_by(c.message_id, c.table_id, c.sequence).limit(limit)
        return self._database.read(lambda connection: [MessageRef(*row) for row in connection.execute(statement)])

    def _mine(self, fence: Fence) -> sa.ColumnElement[bool]:
        return (self._steps.c.run_id == fence.run_id) & (self._steps.c.step == fence.step)

    def _check(self, connection: Connection, fence: Fence) -> None:
        row = connection.execute(self._owner, {"run": fence.run_id, "name": fence.step}).first()
        if row is None or row.owner != fence.owner or row.time_expires <= self._database.now():
            raise LeaseLostError(
                f"step {fence.step!r} of {fence.run_id} was taken over or its lease ran out; nothing was recorded"
            )

    @cached_property
    def _owner(self) -> sa.Select[Any]:
        """Made once: it is asked at every record."""
        c = self._steps.c
        mine = (c.run_id == sa.bindparam("run")) & (c.step == sa.bindparam("name"))
        return sa.select(c.owner, c.time_expires).where(mine).with_for_update()

    def _write(self, connection: Connection, values: list[dict[str, Any]]) -> None:
        if values:
            self._database.dialect.write_many(connection, self._upsert, _KEYS, values)

    @cached_property
    def _upsert(self) -> sa.Insert:
        """Insert, or change the row unless it is done; a second delivery is only counted, the same one again is not."""
        c = self._rows.c
        # Literals: MySQL's driver takes parameters for the rows only.
        still_open = c.state.in_([sa.literal_column(f"'{FAILED}'"), sa.literal_column(f"'{PROCESSED}'")])

        def unless_done(name: str) -> Callable[[Any], Any]:
            return lambda new: sa.case((still_open, new[name]), else_=c[name])

        def added(name: str) -> Callable[[Any], Any]:
            return lambda new: sa.case((c.time_recorded == new["time_recorded"], c[name]), else_=c[name] + new[name])

        changed = {name: added(name) for name in ("attempts", "deliveries")}
        changed |= {name: unless_done(name) for name in _REPLACED}
        # Last, and in this order: MySQL changes one after the other, and the others ask what these two were.
        changed |= {"time_recorded": lambda new: new["time_recorded"], "state": unless_done("state")}
        return self._database.dialect.upsert_many(self._rows, _KEYS, changed)

    def _until(self, lease: float) -> int:
        return self._database.now() + int(lease * NANOSECONDS)


def _in_hand(suspect: str) -> MessageRef | None:
    """The one message that a step names as in hand; None where it names several, or what it says is unreadable."""
    try:
        named = decode(JSON, suspect)
        return MessageRef(*named[: len(MessageRef._fields)]) if isinstance(named, list) else None
    except (UnreadableMessageError, TypeError):
        return None


def _to_row(entry: Entry, run_id: str, now: int) -> dict[str, Any]:
    return {
        "message_id": entry.ref.id,
        "table_id": entry.ref.table_id,
        "sequence": entry.ref.sequence,
        "flow": entry.flow,
        "destination": entry.destination or entry.flow,
        "state": entry.state,
        "attempts": entry.attempts,
        "deliveries": 1 if entry.state == DELIVERED else 0,
        "result": _written(entry.result),
        "error": _written(entry.error),
        "snapshot": _written(entry.snapshot),
        "batch_id": entry.batch_id,
        "run_id": run_id,
        "time_recorded": entry.at or now,
    }


def _written(value: Any) -> str | None:
    """As JSON; what is long is cut: a ledger explains, and has no message's content."""
    if value is None:
        return None
    text = encode_json(value)
    return text if len(text) * 4 <= MOST_BYTES or text_bytes(text) <= MOST_BYTES else encode_json(excerpt(value))


def _to_entry(row: Any) -> Entry:
    def read(name: str) -> Any:
        try:
            return None if row[name] is None else decode(JSON, row[name], row["message_id"])
        except UnreadableMessageError:
            return None  # written by another program: it must not delay other messages

    error = None if row["error"] is None else read("error")
    if row["error"] is not None and not (isinstance(error, dict) and "type" in error):
        error = {"type": "unreadable", "message": str(row["error"])[:_SHOWN], "handler": "", "stack": "", "attempt": 0}
    return Entry(
        ref=MessageRef(row["table_id"], row["sequence"], row["message_id"]),
        flow=row["flow"],
        state=row["state"],
        destination=row["destination"],
        attempts=row["attempts"],
        result=read("result"),
        error=error,
        snapshot=read("snapshot"),
        batch_id=row["batch_id"],
        deliveries=row["deliveries"],
        at=row["time_recorded"],
        run_id=row["run_id"],
    )
