"""Claiming: messages that were found are leased by moving their `time_next` into the future."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Table
from sqlalchemy.engine import Connection

from homing.failure import crash_text
from homing.retry import spread
from homing.row import NANOSECONDS, NEEDED
from homing.store import CRASHED, EXPIRED
from homing.stores.sql.claim_query import ClaimQuery, ClaimRequest
from homing.stores.sql.claim_result import Claimed
from homing.stores.sql.database import Database, chunks
from homing.stores.sql.leases import new_token
from homing.stores.sql.properties import SqlProperties
from homing.stores.sql.rows import FRESH_ROW
from homing.stores.sql.statement_cache import Statements

_TOKEN, _NEXT, _LIFE = map(NEEDED.index, ("lock_token", "time_next", "time_to_live"))
_EARLY = "early"  # stored by plain SQL to be delivered later
_LARGEST = 2**31 - 1
_SPREAD = 97  # a prime: rows are spread by their sequence number over so many places


class Claims:
    """Claims messages from one table. Its methods run inside the caller's transaction."""

    def __init__(self, database: Database, table: Table, name: str, registry: Table, finder: ClaimQuery) -> None:
        self._database = database
        self._table = table
        self._name = name
        self._registry = registry
        self._finder = finder
        self._statements = Statements()

    def claim(self, connection: Connection, wanted: ClaimRequest) -> Claimed:
        """Leases messages that are wanted and due.

        A message that crashed too often or waited too long is kept aside as dead instead.
        """
        now = self._database.now()
        claimed = Claimed(new_token(now))
        if wanted.batch_id is None:
            self._claim_new(connection, wanted, claimed, now)
            return claimed
        if self._database.dialect.locks_rows:
            # Of two processes that claim for the same batch at once, only one may find that it has no messages yet.
            one = sa.select(self._registry.c.name).where(self._registry.c.name == self._table.name)
            connection.execute(one.with_for_update())
        known, token = self._finder.held_by_batch(connection, wanted, now)
        claimed.token = token or claimed.token
        if known is not None:
            # A run that leases its batch without the contents learns of crashes from its ledger. A lease that ran out
            # means only that the run was late.
            self._lease(connection, known, wanted, claimed, now, late=not wanted.contents)
            claimed.again = claimed.size
        if known is None or wanted.ids is not None:
            self._claim_new(connection, wanted, claimed, now)
        return claimed

    def expire(self, connection: Connection) -> int:
        """Dead-letters messages that are not leased, and due for longer than their time to live. Returns how many."""
        c, now = self._table.c, self._database.now()
        free = c.time_next.is_not(None) & sa.or_(c.lock_token.is_(None), c.time_next <= now)
        # Taken from now: added to when it was due, a long life would be more than the database can count.
        life = sa.case((c.time_to_live < 0, 0), else_=c.time_to_live)
        statement = self._table.update().where(free, c.time_scheduled <= sa.literal(now, sa.BigInteger) - life)
        return connection.execute(statement.values(**self._dead(EXPIRED, 0, now))).rowcount

    def _claim_new(self, connection: Connection, wanted: ClaimRequest, claimed: Claimed, now: int) -> None:
        before = claimed.size
        wanted = self._finder.light_enough(connection, wanted, now)
        while True:
            found = self._finder.find(connection, wanted, now)
            if not found:
                return
            self._lease(connection, found, wanted, claimed, now)
            # If none of those found was leased, they are dead now, or due later: look for more messages behind them.
            if claimed.size > before or wanted.ids is not None:
                return

    def _lease(
        self,
        connection: Connection,
        found: Sequence[Any],
        wanted: ClaimRequest,
        claimed: Claimed,
        now: int,
        *,
        late: bool = False,
    ) -> None:
        """Leases these rows, except those that are dead or turn out to be due later.

        An earlier lease that ran out counts as a crash of the row's message, except with `late`.
        """
        fates: dict[str | None, list[Any]] = {None: [], _EARLY: [], CRASHED: [], EXPIRED: []}
        taken, early = fates[None], fates[_EARLY]
        for row in found:
            if len(row) == FRESH_ROW or (row[_TOKEN] is None and row[_NEXT] and row[_LIFE] is None):
                taken.append(row)  # never leased before, and nothing special
            else:
                fates[_fate(row, wanted, now, late)].append(row)
        if early:
            self._update(connection, early, self._changes({"time_next": self._table.c.time_scheduled}))
        for reason in (CRASHED, EXPIRED):
            if fates[reason]:
                dead = self._changes(self._dead(reason, wanted.properties.max_deliveries, now))
                self._update(connection, fates[reason], dead)
        with self._database.unwaited(connection) as at_work:
            self._update(connection, taken, *self._leases(wanted, claimed.token, now, late))
            claimed.size += len(taken)
            if wanted.contents:
                claimed.rows += taken
            if at_work:
                claimed.read()  # meanwhile: reading takes less time than the server needs to write

    def _leases(self, wanted: ClaimRequest, token: str, now: int, late: bool) -> tuple[sa.Update, dict[str, Any]]:
        """Returns the statement that leases, and its parameters."""
        properties = wanted.properties if wanted.lease is None else None
        parameters: dict[str, Any] = {"now": now, "token": token, "batch": wanted.batch_id}
        if wanted.lease is not None:
            parameters["until"] = now + int(wanted.lease * NANOSECONDS)
        return self._statements.get(self._leasing, properties, wanted.ids is not None, late), parameters

    def _leasing(self, properties: SqlProperties | None, named: bool, late: bool) -> sa.Update:
        """Returns the statement that leases rows.

        `properties` say how long the store's own lease is; they are None when the caller said for how long to lease.
        """
        c, now, token = self._table.c, sa.bindparam("now", type_=sa.BigInteger), sa.bindparam("token", type_=sa.String)
        ran_out = c.lock_token.is_not(None) & (c.time_next <= now)
        # In this order: MySQL assigns from left to right, and each assignment sees those before it.
        values: dict[str, Any] = {
            "crashes": c.crashes if late else _one_more(c.crashes, ran_out),
            "time_next": sa.bindparam("until") if properties is None else now + self._own_lease(properties),
            "epoch": _one_more(c.epoch, c.lock_token.is_(None) | (c.lock_token != token)),
            "lock_token": token,
            # Even without a batch: the batch that claimed it before must not find it again.
            "batch_id": sa.bindparam("batch", type_=sa.String),
        }
        if named:
            values["time_dead"] = None
        return self._changes(values)

    def _own_lease(self, properties: SqlProperties) -> Any:
        """How long the store's own lease is, as an expression: it doubles with each delivery, up to `max_ack_wait`."""
        c = self._table.c
        waits = properties.doublings(properties.ack_wait)

        def length(deliveries: int, wait: int) -> Any:
            jitter = properties.jitter if deliveries else 0.0
            shortest, longest = spread(wait, jitter, least=waits[0], most=waits[-1])
            step = int((longest - shortest) / _SPREAD)
            start = sa.literal(int(shortest), sa.BigInteger)
            return start + c.sequence % _SPREAD * sa.literal(step, sa.BigInteger) if step else start

        *growing, last = [length(deliveries, wait) for deliveries, wait in enumerate(waits)]
        return sa.case(*((c.epoch == n, each) for n, each in enumerate(growing)), else_=last) if growing else last

    def _dead(self, reason: str, max_deliveries: int, now: int) -> dict[str, Any]:
        why = "it was due for longer than its time to live"
        if reason == CRASHED:
            why = crash_text(max_deliveries)
        values = {
            "time_dead": now,
            "time_next": None,
            "lock_token": None,
            "dead_letter_reason": reason,
            "dead_letter_description": why,
            "dead_letter_source": self._name,
        }
        return {**values, "crashes": _one_more(self._table.c.crashes, sa.true())} if reason == CRASHED else values

    def _changes(self, values: dict[str, Any]) -> sa.Update:
        """A statement that changes the rows given under `keys`."""
        mine = self._database.dialect.is_in(self._table.c.sequence, sa.bindparam("keys"))
        return self._table.update().where(mine).ordered_values(*values.items())

    def _update(
        self,
        connection: Connection,
        found: Sequence[Any],
        statement: sa.Update,
        parameters: Mapping[str, Any] | None = None,
    ) -> None:
        dialect = self._database.dialect
        for chunk in chunks([row[0] for row in found], dialect.chunk):
            keys = dialect.listed(self._table.c.sequence, chunk)
            connection.execute(statement, {**(parameters or {}), "keys": keys})


def _fate(row: Sequence[Any], wanted: ClaimRequest, now: int, late: bool) -> str | None:
    """Returns what becomes of a due message instead of a lease; None if it is to be leased."""
    _, due, _, crashes, token, scheduled, life = row[: len(NEEDED)]
    try:
        if due == 0 and scheduled > now:
            return _EARLY
        if not late and token is not None and due <= now and crashes + 1 >= wanted.properties.max_deliveries:
            return CRASHED
        held = token is not None and due > now
        if life is not None and scheduled + life <= now and wanted.ids is None and not held:
            return EXPIRED
    except TypeError:
        return None  # not a number, written by another program: reading the row reports it
    return None


def _one_more(column: sa.Column[Any], when: sa.ColumnElement[bool]) -> sa.ColumnElement[Any]:
    """The column plus one, unless it already contains the largest number it can hold."""
    return column + sa.case((when & (column < _LARGEST), 1), else_=0)
