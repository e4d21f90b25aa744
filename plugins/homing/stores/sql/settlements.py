"""Settling: every change to a held message is fenced by the token of its lease."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import Table
from sqlalchemy.engine import Connection

from homing.errors import LeaseLostError, NotInFlightError
from homing.message import Message
from homing.stores.sql.database import NANOSECONDS, Database, chunks
from homing.stores.sql.properties import Properties

Change = Mapping[str, Any]

_SPREAD = 1000  # how many different ends the waits of messages released together have


class Held(NamedTuple):
    """A message somebody says he holds: known by its place in the table where possible, which is the faster way."""

    id: str
    token: str
    sequence: int | None = None


class NotHeldError(Exception):
    """Ends the transaction in which some messages turned out not to be held; the store then says which and why."""


def held(message: Message) -> Held:
    return Held(message.id, message.lock_token or "", message.sequence_number)


class Settlements:
    """Changes held messages in one table, all or none."""

    def __init__(self, database: Database, table: Table, name: str) -> None:
        self._database = database
        self._table = table
        self._name = name

    # -- the changes -------------------------------------------------------------------------------------------

    def finish(self) -> Change:
        return {"time_acked": self._database.now(), "time_next": None, "lock_token": None}

    def release(self, properties: Properties) -> Change:
        """Retrievable again at once, or after its back-off."""
        c, now = self._table.c, self._database.now()
        due: Any = now
        if properties.backoff:
            jitter = properties.backoff_jitter

            def end(wait: int) -> Any:
                spread = c.sequence % _SPREAD * sa.literal(int(wait * jitter / _SPREAD), sa.BigInteger)
                return sa.literal(now + wait, sa.BigInteger) - (spread if jitter else 0)

            *growing, cap = map(end, properties.backoffs())
            waits = [(c.epoch <= n, wait) for n, wait in enumerate(growing, start=1)]
            due = sa.case(*waits, else_=cap) if waits else cap
        return {"time_next": due, "lock_token": None, "batch_id": None}

    def put_aside(self) -> Change:
        return {"time_next": None, "lock_token": None, "batch_id": None}

    def bury(self, reason: str, description: str | None) -> Change:
        return {
            "time_dead": self._database.now(),
            "time_next": None,
            "lock_token": None,
            "dead_letter_source": self._name,
            "dead_letter_reason": reason,
            "dead_letter_description": description,
        }

    def extend(self, lease: float) -> Change:
        return {"time_next": self._database.now() + int(lease * NANOSECONDS)}

    # -- making them -------------------------------------------------------------------------------------------

    def apply(self, changes: Sequence[tuple[Sequence[Held], Change]], transaction: Any = None) -> None:
        """Makes each change to its messages; raises, and changes nothing, when one of them is not held."""

        def work(connection: Connection) -> None:
            for messages, change in changes:
                self._change(connection, messages, change)

        try:
            if transaction is None:
                self._database.write(work)
            else:
                with self._database.within(transaction) as connection:
                    work(connection)
        except NotHeldError:
            self._explain([message for messages, _ in changes for message in messages], transaction)

    def _change(self, connection: Connection, messages: Sequence[Held], change: Change) -> None:
        c, now = self._table.c, self._database.now()
        by_token: dict[str, list[Held]] = {}
        for token, neighbours in groupby(messages, key=itemgetter(1)):
            by_token.setdefault(token, []).extend(neighbours)
        for token, group in by_token.items():
            # "+ 0" keeps a planner from looking for these few messages among all that are leased.
            mine = (c.lock_token == token) & (c.time_next + sa.literal_column("0") > now)
            for column, keys in _keys(self._table, group):
                for chunk in chunks(keys, self._database.dialect.chunk):
                    where = self._database.dialect.among(column, chunk) & mine
                    if connection.execute(self._table.update().where(where).values(**change)).rowcount != len(chunk):
                        raise NotHeldError

    def _explain(self, messages: Sequence[Held], transaction: Any) -> None:
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
            if row.lock_token != message.token or row.time_next <= now:
                break
            seen.add(message.id)
        raise LeaseLostError(
            f"the lease on message {message.id} in store {self._name!r} ran out or passed to another consumer"
        )

    def _times(self, connection: Connection, messages: Sequence[Held]) -> dict[str, Any]:
        c = self._table.c
        found: dict[str, Any] = {}
        for chunk in chunks((message.id for message in messages), self._database.dialect.chunk):
            statement = sa.select(c.id, c.lock_token, c.time_next).where(self._database.dialect.among(c.id, chunk))
            found.update((row.id, row) for row in connection.execute(statement))
        return found


def _keys(table: Table, messages: Collection[Held]) -> list[tuple[Any, list[Any]]]:
    """The messages by a column that finds them."""
    numbers = [message.sequence for message in messages]
    if None not in numbers:
        return [(table.c.sequence, numbers)]
    return [(table.c.id, [message.id for message in messages])]
