"""Settling: every change to a held message is fenced by the token of its lease."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import Table
from sqlalchemy.engine import Connection

from homing.errors import LeaseLostError, NotInFlightError
from homing.message import Message
from homing.retry import spread
from homing.row import NANOSECONDS, explanation
from homing.stores.sql.archive import Archive
from homing.stores.sql.claim_query import ClaimQuery
from homing.stores.sql.database import Database, chunks
from homing.stores.sql.notify import notify
from homing.stores.sql.properties import ARCHIVED, KEPT, REMOVED, SqlProperties
from homing.stores.sql.schema import apart
from homing.stores.sql.statement_cache import Statements

_SPREAD = 1000  # how many different ends the waits of messages released together have


@dataclass(frozen=True)
class Change:
    """What a settlement writes into the row of a message."""

    values: Mapping[str, Any]
    #: Values that depend on the row.
    computed: Mapping[str, sa.ColumnElement[Any]] = field(default_factory=dict)
    #: What becomes of a message that is acknowledged.
    after: str = KEPT
    #: Whether another message, or this one again, may be due now.
    wakes: bool = False


class KnownLease(NamedTuple):
    """A message known by its id and the token of its lease."""

    id: str
    lock_token: str
    sequence_number: int | None = None


#: A message that a caller claims to hold: found by its place in the table if that is known, which is faster.
Leased = KnownLease | Message


class NotHeldError(Exception):
    """Ends a transaction because some of its messages are not held. The store then says which these are, and why."""


class Settlements:
    """Changes held messages in one table, all or none."""

    def __init__(
        self, database: Database, table: Table, name: str, finder: ClaimQuery, archive: Archive | None
    ) -> None:
        self._database = database
        self._table = table
        self._name = name
        self._finder = finder
        self._archive = archive
        self._statements = Statements()

    # -- the changes -------------------------------------------------------------------------------------------

    def finish(self, properties: SqlProperties) -> Change:
        values = {"time_acked": self._database.now(), "time_next": None, "lock_token": None}
        return Change(values, after=properties.after_acknowledging, wakes=self._finder.has_sessions)

    def release(self, properties: SqlProperties) -> Change:
        """Retrievable again at once, or after its back-off."""
        c, now = self._table.c, self._database.now()
        free = {"lock_token": None, "batch_id": None}
        if not properties.backoff:
            return Change({"time_next": now, **free}, wakes=True)
        jitter = properties.backoff_jitter

        def end(wait: int) -> sa.ColumnElement[Any]:
            due = sa.literal(now + wait, sa.BigInteger)
            return due - c.sequence % _SPREAD * sa.literal(_step(wait, jitter), sa.BigInteger) if jitter else due

        *growing, cap = map(end, properties.backoffs())
        waits = [(c.epoch <= n, wait) for n, wait in enumerate(growing, start=1)]
        return Change(free, computed={"time_next": sa.case(*waits, else_=cap) if waits else cap}, wakes=True)

    def put_aside(self) -> Change:
        values = {"time_next": None, "lock_token": None, "batch_id": None}
        return Change(values, wakes=self._finder.has_sessions)

    def dead_letter(self, reason: str, description: str | None) -> Change:
        values = {
            "time_dead": self._database.now(),
            "time_next": None,
            "lock_token": None,
            "dead_letter_source": self._name,
            "dead_letter_reason": explanation(reason),
            "dead_letter_description": explanation(description),
        }
        return Change(values, wakes=self._finder.has_sessions)

    def extend(self, lease: float) -> Change:
        return Change({"time_next": self._database.now() + int(lease * NANOSECONDS)})

    def rest(self, resting: bool) -> Change:
        """Forgives in advance the crash that is counted when the lease runs out, or takes that back."""
        crashes = self._table.c.crashes
        return Change({}, computed={"crashes": crashes - 1 if resting else crashes + 1})

    # -- making them -------------------------------------------------------------------------------------------

    def apply(self, changes: Sequence[tuple[Sequence[Leased], Change]], transaction: Any = None) -> None:
        """Makes each change to its messages; raises, and changes nothing, when one of them is not held."""

        def work(connection: Connection) -> None:
            for messages, change in changes:
                self._change(connection, messages, change)
            if any(change.wakes for _, change in changes):
                notify(connection, self._table.name)

        archived = [change.values["time_acked"] for _, change in changes if change.after == ARCHIVED]
        if archived:
            self._room().require()
        try:
            if transaction is None:
                for now in archived:
                    self._room().prepare(now)
                self._database.write(work)
            else:
                with self._database.within(transaction) as connection:
                    for now in archived:
                        self._room().make_room(connection, now)
                    work(connection)
        except NotHeldError:
            self._explain([message for messages, _ in changes for message in messages], transaction)

    def _change(self, connection: Connection, messages: Sequence[Leased], change: Change) -> None:
        dialect, now = self._database.dialect, self._database.now()
        by_token: dict[str, list[Leased]] = {}
        for token, neighbours in groupby(messages, key=attrgetter("lock_token")):
            by_token.setdefault(token or "", []).extend(neighbours)
        for token, group in by_token.items():
            column, keys = self._keys(group)
            for chunk in chunks(keys, dialect.chunk):
                parameters = {"keys": dialect.listed(column, chunk), "token": token, "now": now}
                if self._change_rows(connection, column, change, parameters, len(chunk)) != len(chunk):
                    raise NotHeldError

    def _change_rows(
        self, connection: Connection, column: sa.Column[Any], change: Change, parameters: dict[str, Any], expected: int
    ) -> int:
        """How many of these rows were changed, or removed."""
        if change.after == ARCHIVED:
            move = self._statements.get(self._archiving, column.name)
            return connection.execute(move, {**parameters, "new_time_acked": change.values["time_acked"]}).rowcount
        changed = 0
        if change.after == REMOVED:
            remove = self._statements.get(self._removing, column.name)
            changed = connection.execute(remove, parameters).rowcount
        if changed < expected:
            update = self._statements.get(self._changing, column.name, *change.values)
            if change.computed:
                update = update.values(**change.computed)
            parameters |= {f"new_{name}": value for name, value in change.values.items()}
            changed += connection.execute(update, parameters).rowcount
        return changed

    def _changing(self, key: str, *names: str) -> sa.Update:
        values: dict[str, Any] = {name: sa.bindparam(f"new_{name}") for name in names}
        return self._table.update().where(self._mine(key)).values(**values)

    def _archiving(self, key: str) -> sa.Insert:
        return self._room().moving(self._mine(key))

    def _room(self) -> Archive:
        assert self._archive is not None, "a store without an archive refuses to be told to use it"
        return self._archive

    def _removing(self, key: str) -> sa.Delete:
        """All but those that belong to a batch: that may be asked for by its id again."""
        return self._table.delete().where(self._mine(key), self._table.c.batch_id.is_(None))

    def _mine(self, key: str) -> sa.ColumnElement[bool]:
        """Whether a row is one of those meant, and held."""
        c = self._table.c
        lasts = apart(c.time_next) > sa.bindparam("now")
        meant = self._database.dialect.is_in(c[key], sa.bindparam("keys"))
        return sa.and_(meant, c.lock_token == sa.bindparam("token"), lasts)

    def _keys(self, messages: Sequence[Leased]) -> tuple[sa.Column[Any], list[Any]]:
        """A column that finds these messages, and what it holds."""
        numbers = [message.sequence_number for message in messages]
        if None not in numbers:
            return self._table.c.sequence, numbers
        return self._table.c.id, [message.id for message in messages]

    def _explain(self, messages: Sequence[Leased], transaction: Any) -> None:
        """Says why the first of these that is not held cannot be settled."""
        if transaction is None:
            found = self._database.read(lambda connection: self._times(connection, messages))
        else:
            with self._database.within(transaction) as connection:
                found = self._times(connection, messages)
        now, seen = self._database.now(), set[str]()
        for message in messages:
            row = found.get(message.id)
            if row is None or row.time_next is None or row.lock_token is None or message.id in seen:
                raise NotInFlightError(f"message {message.id} in store {self._name!r} is unknown or already finished")
            if row.lock_token != message.lock_token or row.time_next <= now:
                break
            seen.add(message.id)
        raise LeaseLostError(
            f"the lease on message {message.id} in store {self._name!r} ran out or passed to another consumer"
        )

    def _times(self, connection: Connection, messages: Sequence[Leased]) -> dict[str, Any]:
        c = self._table.c
        found: dict[str, Any] = {}
        for chunk in chunks((message.id for message in messages), self._database.dialect.chunk):
            statement = sa.select(c.id, c.lock_token, c.time_next).where(self._database.dialect.among(c.id, chunk))
            found.update((row.id, row) for row in connection.execute(statement))
        return found


def _step(wait: int, jitter: float) -> int:
    shortest, longest = spread(wait, jitter, least=0.0, most=wait)
    return int((longest - shortest) / _SPREAD)
