"""SqlStore: messages in one SQL table, leased by moving their `time_next` into the future."""

from __future__ import annotations

import re
import secrets
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite
from sqlalchemy.engine import URL, Connection

from homing import store as contract
from homing.errors import ConfigurationError, LeaseLostError, NotInFlightError, UnreadableMessageError
from homing.message import STATES, Headers, Message
from homing.store import BatchLease, Store
from homing.stores.sql import rows
from homing.stores.sql.database import IN_CHUNK, NANOSECONDS, Database, chunks
from homing.stores.sql.ledger import SqlLedger
from homing.stores.sql.schema import messages_table

_NAME = re.compile(r"(?=.{1,40}$)[a-z][a-z0-9]*(_[a-z0-9]+)*")


def open_sql_store(url: str) -> SqlStore:
    """Opens `sqlite:///path?store=name&ack_wait=30&max_deliveries=5`; raises ConfigurationError for a bad option."""
    try:
        parsed = sa.make_url(url)
    except sa.exc.ArgumentError as error:
        raise ConfigurationError("this is not a database URL such as sqlite:///inbox.db?store=orders") from error
    options = dict(parsed.query)
    name = options.pop("store", "messages")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigurationError(f"a store name is lower-case words joined by single _, at most 40 long; not {name!r}")
    return SqlStore(
        parsed.difference_update_query(["store", "ack_wait", "max_deliveries"]),
        name,
        ack_wait=_positive(options, "ack_wait", 30.0, float),
        max_deliveries=_positive(options, "max_deliveries", 5, int),
    )


class SqlStore(Store):
    """Messages in a SQL table.

    A lease lasts `ack_wait` seconds unless the claim says otherwise. A message whose lease ran out `max_deliveries`
    times has crashed its consumer that often: claiming it once more keeps it aside as dead, with that reason.
    """

    features = frozenset(
        {
            contract.BULK,
            contract.CLAIM,
            contract.COUNT,
            contract.DEAD_LETTER,
            contract.ENVELOPE,
            contract.LEDGER,
            contract.RENEW,
        }
    )

    def __init__(
        self,
        url: URL,
        name: str,
        *,
        ack_wait: float = 30.0,
        max_deliveries: int = 5,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self.name = name
        self._url = url
        self._ack_wait = ack_wait
        self._max_deliveries = max_deliveries
        self._clock = clock
        self._table = messages_table(name)
        self._database = Database(url, name)
        self._database.require(self._table)
        self._in_flight: dict[str, str] = {}

    # -- the three verbs ---------------------------------------------------------------------------------------

    def store(self, content: Any, *, id: str | None = None, headers: Headers | None = None) -> str:
        message = content if isinstance(content, Message) else Message(id or _new_id(), content, headers=headers or {})
        return self.store_many([message])[0]

    def retrieve(self) -> Message | None:
        claimed = self.claim(1, lease=self._ack_wait)
        return claimed[0] if claimed else None

    def acknowledge(self, message: str | Message, success: bool = True) -> None:
        message_id = message if isinstance(message, str) else message.id
        token = self._in_flight.get(message_id) if isinstance(message, str) else message.lock_token
        if token is None:
            raise NotInFlightError(
                f"message {message_id} was not retrieved from store {self.name!r} by this consumer, or is finished"
            )
        self._settle([message_id], token, success)

    def close(self) -> None:
        self._database.close()

    # -- many at a time ----------------------------------------------------------------------------------------

    def store_many(self, contents: Iterable[Any]) -> list[str]:
        """Stores contents, or whole Messages with their id, headers and properties; all or none."""
        now = self._clock()
        messages = [item if isinstance(item, Message) else Message(_new_id(), item) for item in contents]
        values = [rows.to_row(message, now) for message in messages]
        if values:
            with self._database.writing() as connection:
                statement = sqlite.insert(self._table).on_conflict_do_nothing(index_elements=["id"])
                connection.execute(statement, values)
        return [message.id for message in messages]

    def claim(self, limit: int, *, batch_id: str | None = None, lease: float = 30.0) -> list[Message]:
        held, order = self._claim(limit, batch_id or str(uuid.uuid4()), lease, ids=None)
        if held is None:
            return []
        claimed = []
        for row in sorted(self.batch_rows(held), key=lambda row: order[row["sequence"]]):
            try:
                claimed.append(replace(rows.to_message(row), lock_token=held.lock_token))
            except UnreadableMessageError as error:
                self._bury([row["id"]], held.lock_token, "unreadable", str(error))
        self._in_flight.update((message.id, held.lock_token) for message in claimed)
        return claimed

    def settle(self, messages: Sequence[Message], success: bool = True) -> None:
        by_token: dict[str, list[str]] = {}
        for message in messages:
            by_token.setdefault(message.lock_token or "", []).append(message.id)
        for token, ids in by_token.items():
            self._settle(ids, token, success)

    def count(self) -> dict[str, int]:
        state = rows.state_of(self._table, self._clock())
        statement = sa.select(state, sa.func.count()).select_from(self._table).group_by(state)
        with self._database.reading() as connection:
            found = {row[0]: row[1] for row in connection.execute(statement)}
        return {name: found.get(name, 0) for name in STATES}

    # -- batches, without their contents -----------------------------------------------------------------------

    def has_due(self) -> bool:
        """Whether a claim would find anything now. Claims nothing."""
        statement = sa.select(self._table.c.sequence).where(self._table.c.time_next <= self._clock()).limit(1)
        with self._database.reading() as connection:
            return connection.execute(statement).first() is not None

    def knows_batch(self, batch_id: str) -> bool:
        """Whether messages were claimed under this batch id, be they finished by now."""
        statement = sa.select(self._table.c.sequence).where(self._table.c.batch_id == batch_id).limit(1)
        with self._database.reading() as connection:
            return connection.execute(statement).first() is not None

    def lease_batch(
        self, limit: int, *, batch_id: str, lease: float, ids: Collection[str] | None = None
    ) -> BatchLease | None:
        """Claims like `claim`, but leaves the contents where they are; None when there is nothing to claim.

        With `ids`, claims those of these messages that nobody else holds, dead ones included. What the batch already
        holds is kept, and its lease made to last `lease` seconds from now.
        """
        return self._claim(limit, batch_id, lease, ids)[0]

    def renew(self, held: Message | BatchLease, lease: float) -> None:
        table, now = self._table, self._clock()
        if isinstance(held, Message):
            mine, what = table.c.id == held.id, f"message {held.id}"
        else:
            mine, what = table.c.batch_id == held.batch_id, f"batch {held.batch_id}"
        statement = (
            table.update()
            .where(mine, table.c.lock_token == held.lock_token)
            .where(table.c.time_next > now)
            .values(time_next=now + int(lease * NANOSECONDS))
        )
        with self._database.writing() as connection:
            if not connection.execute(statement).rowcount:
                raise LeaseLostError(f"the lease on {what} in store {self.name!r} ran out or was taken")

    def held_batch(self, batch_id: str) -> BatchLease | None:
        """The batch's lease as it stands, unless it ran out."""
        table = self._table
        statement = (
            sa.select(sa.func.min(table.c.lock_token), sa.func.count())
            .where(table.c.batch_id == batch_id, table.c.lock_token.is_not(None))
            .where(table.c.time_next > self._clock())
        )
        with self._database.reading() as connection:
            token, size = connection.execute(statement).one()
        return BatchLease(batch_id, token, size) if size else None

    def batch_rows(
        self, held: BatchLease, *, after: int = 0, upto: int | None = None, page: int = 1000
    ) -> Iterator[dict[str, Any]]:
        """The batch's rows as they lie in the table, in order of sequence, page by page; reading changes nothing."""
        table = self._table
        where = [table.c.batch_id == held.batch_id, table.c.lock_token == held.lock_token]
        if upto is not None:
            where.append(table.c.sequence <= upto)
        while True:
            statement = sa.select(table).where(*where, table.c.sequence > after).order_by(table.c.sequence).limit(page)
            with self._database.reading() as connection:
                found = connection.execute(statement).mappings().all()
            yield from (dict(row) for row in found)
            if len(found) < page:
                return
            after = found[-1]["sequence"]

    def batch_ranges(self, held: BatchLease, parts: int) -> list[tuple[int, int]]:
        """Cuts the batch into at most `parts` ranges (after, upto] of sequence numbers, of about the same size."""
        table = self._table
        statement = (
            sa.select(table.c.sequence)
            .where(table.c.batch_id == held.batch_id, table.c.lock_token == held.lock_token)
            .order_by(table.c.sequence)
        )
        with self._database.reading() as connection:
            numbers = list(connection.execute(statement).scalars())
        size = max(1, -(-len(numbers) // max(1, parts)))
        return [(chunk[0] - 1, chunk[-1]) for chunk in chunks(numbers, size)]

    def settle_batch(self, held: BatchLease, ids: Collection[str], success: bool = True) -> None:
        """Acknowledges or releases these messages of the batch; raises LeaseLostError and changes nothing of them
        when one of them is no longer held under this lease."""
        self._settle(list(ids), held.lock_token, success)

    # -- dead messages -----------------------------------------------------------------------------------------

    def dead_messages(self, limit: int = 1000) -> list[dict[str, Any]]:
        """Rows this store keeps aside as dead, oldest first, with their reasons."""
        table = self._table
        statement = sa.select(table).where(table.c.time_dead.is_not(None)).order_by(table.c.time_dead).limit(limit)
        with self._database.reading() as connection:
            return [dict(row) for row in connection.execute(statement).mappings()]

    def finish_dead(self, ids: Collection[str]) -> None:
        """Acknowledges dead messages, after a copy of them is durable elsewhere."""
        table = self._table
        with self._database.writing() as connection:
            for chunk in chunks(list(ids), IN_CHUNK):
                where = table.c.id.in_(chunk) & table.c.time_dead.is_not(None)
                connection.execute(table.update().where(where).values(time_acked=self._clock(), time_dead=None))

    # -- books -------------------------------------------------------------------------------------------------

    def ledger(self) -> SqlLedger:
        """The delivery ledger kept beside this store."""
        return SqlLedger(self._database, self.name, clock=self._clock)

    def sibling(self, name: str) -> SqlStore:
        """Another store in the same database."""
        return SqlStore(
            self._url, name, ack_wait=self._ack_wait, max_deliveries=self._max_deliveries, clock=self._clock
        )

    def present(self, ids: Collection[str]) -> set[str]:
        """Those of these messages that are here and not acknowledged."""
        table, found = self._table, set[str]()
        with self._database.reading() as connection:
            for chunk in chunks(ids, IN_CHUNK):
                statement = sa.select(table.c.id).where(table.c.id.in_(chunk), table.c.time_acked.is_(None))
                found.update(connection.execute(statement).scalars())
        return found

    def states(self) -> Iterator[tuple[str, str]]:
        """(id, state) of every message the store knows, finished ones included, in order."""
        table, after, page = self._table, 0, 10_000
        state = rows.state_of(table, self._clock())
        while True:
            statement = sa.select(table.c.sequence, table.c.id, state).where(table.c.sequence > after)
            with self._database.reading() as connection:
                found = connection.execute(statement.order_by(table.c.sequence).limit(page)).all()
            yield from ((row[1], row[2]) for row in found)
            if len(found) < page:
                return
            after = found[-1][0]

    # -- inside one transaction --------------------------------------------------------------------------------

    def _claim(
        self, limit: int, batch_id: str, lease: float, ids: Collection[str] | None
    ) -> tuple[BatchLease | None, dict[int, int]]:
        """The lease, and the place of each row, by its sequence number, in the order of the claim."""
        if limit < 1 or lease <= 0:
            raise ConfigurationError(f"a claim needs a positive limit and lease, not {limit} and {lease}")
        now = self._clock()
        with self._database.writing() as connection:
            known, token = self._already_held(connection, batch_id, now)
            held = BatchLease(batch_id, token or str(uuid.uuid4()), 0)
            wanted = [] if known is None else known
            if ids is not None:
                wanted += self._due_among(connection, ids, now, batch_id)
            elif known is None:
                wanted = self._due(connection, limit, now)
            leased = self._lease(connection, wanted, held, now, lease)
            # All that was due had crashed too often and is kept aside now: there may be more behind it.
            while not leased and wanted and known is None and ids is None:
                wanted = self._due(connection, limit, now)
                leased = self._lease(connection, wanted, held, now, lease)
        order = {sequence: place for place, sequence in enumerate(wanted)}
        return (replace(held, size=leased) if leased else None), order

    def _already_held(self, connection: Connection, batch_id: str, now: int) -> tuple[list[int] | None, str | None]:
        """The sequence numbers this batch still has to settle, and its token while the lease lasts.

        None instead of numbers when the batch id was never used: only then may new messages be claimed for it.
        """
        table = self._table
        statement = sa.select(table.c.sequence, table.c.lock_token, table.c.time_next).where(
            table.c.batch_id == batch_id
        )
        found = connection.execute(statement.order_by(table.c.priority, table.c.sequence)).all()
        if not found:
            return None, None
        held = [row for row in found if row.lock_token is not None]
        live = {row.lock_token for row in held if row.time_next > now}
        return [row.sequence for row in held], live.pop() if len(live) == 1 else None

    def _due(self, connection: Connection, limit: int, now: int) -> list[int]:
        table = self._table
        statement = (
            sa.select(table.c.sequence)
            .where(table.c.time_next <= now)
            .order_by(table.c.priority, table.c.time_next, table.c.sequence)
            .limit(limit)
        )
        return list(connection.execute(statement).scalars())

    def _due_among(self, connection: Connection, ids: Collection[str], now: int, batch_id: str) -> list[int]:
        table = self._table
        found: list[int] = []
        for chunk in chunks(list(ids), IN_CHUNK):
            statement = (
                sa.select(table.c.sequence)
                .where(table.c.id.in_(chunk), sa.or_(table.c.time_next <= now, table.c.time_dead.is_not(None)))
                .where(sa.or_(table.c.batch_id.is_(None), table.c.batch_id != batch_id, table.c.lock_token.is_(None)))
            )
            found += connection.execute(statement).scalars()
        return found

    def _lease(self, connection: Connection, sequences: list[int], held: BatchLease, now: int, lease: float) -> int:
        """Puts these rows under the lease, keeping aside those that crashed too often; how many are leased."""
        table, until = self._table, now + int(lease * NANOSECONDS)
        ran_out = table.c.lock_token.is_not(None) & (table.c.time_next <= now)
        leased = 0
        for chunk in chunks(sequences, IN_CHUNK):
            mine = table.c.sequence.in_(chunk)
            too_often = sa.select(table.c.sequence).where(mine, ran_out, table.c.crashes + 1 >= self._max_deliveries)
            crashed = list(connection.execute(too_often).scalars())
            if crashed:
                dead = table.update().where(table.c.sequence.in_(crashed)).values(**self._dead_after_crashes(now))
                connection.execute(dead)
            statement = (
                table.update()
                .where(mine, table.c.sequence.not_in(crashed))
                .values(
                    lock_token=held.lock_token,
                    batch_id=held.batch_id,
                    crashes=table.c.crashes + sa.case((ran_out, 1), else_=0),
                    epoch=table.c.epoch + sa.case((table.c.lock_token == held.lock_token, 0), else_=1),
                    time_next=until,
                    time_dead=None,
                )
            )
            leased += connection.execute(statement).rowcount
        return leased

    def _dead_after_crashes(self, now: int) -> dict[str, Any]:
        return {
            "time_dead": now,
            "time_next": None,
            "lock_token": None,
            "crashes": self._table.c.crashes + 1,
            "dead_letter_reason": "crashed",
            "dead_letter_description": f"its lease ran out {self._max_deliveries} times: whoever handles it dies",
            "dead_letter_source": self.name,
        }

    def _settle(self, ids: list[str], token: str, success: bool) -> None:
        now = self._clock()
        finish = {"time_acked": now, "time_next": None, "lock_token": None}
        release = {"time_next": now, "lock_token": None, "batch_id": None}
        self._change_held(ids, token, finish if success else release, now)

    def _bury(self, ids: list[str], token: str, reason: str, description: str) -> None:
        now = self._clock()
        dead = {"time_dead": now, "time_next": None, "lock_token": None, "dead_letter_source": self.name}
        explained = {**dead, "dead_letter_reason": reason, "dead_letter_description": description}
        self._change_held(ids, token, explained, now)

    def _change_held(self, ids: list[str], token: str, values: dict[str, Any], now: int) -> None:
        """Changes messages held under this token, all or none."""
        if not ids:
            return
        table = self._table
        with self._database.writing() as connection:
            for chunk in chunks(ids, IN_CHUNK):
                mine = table.c.id.in_(chunk) & (table.c.lock_token == token) & (table.c.time_next > now)
                held = set(connection.execute(sa.select(table.c.id).where(mine)).scalars())
                for message_id in chunk:
                    if message_id not in held:
                        raise self._not_held(connection, message_id)
                connection.execute(table.update().where(mine).values(**values))
        for message_id in ids:
            self._in_flight.pop(message_id, None)

    def _not_held(self, connection: Connection, message_id: str) -> NotInFlightError | LeaseLostError:
        """Why this message cannot be settled; raising it undoes the transaction."""
        table = self._table
        statement = sa.select(table.c.time_next).where(table.c.id == message_id)
        row = connection.execute(statement).first()
        if row is None or row.time_next is None:
            return NotInFlightError(f"message {message_id} in store {self.name!r} is unknown or already finished")
        return LeaseLostError(
            f"the lease on message {message_id} in store {self.name!r} ran out or passed to another consumer"
        )


def _new_id() -> str:
    """Unique, and rising with time, so that the index on it grows at one end."""
    return f"{time.time_ns():016x}-{secrets.token_hex(8)}"


def _positive(options: dict[str, Any], key: str, default: Any, kind: type) -> Any:
    try:
        value = kind(options.get(key, default))
    except (TypeError, ValueError):
        value = 0
    if value <= 0:
        raise ConfigurationError(f"the store option {key} is a positive number, not {options[key]!r}")
    return value
