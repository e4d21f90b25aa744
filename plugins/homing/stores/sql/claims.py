"""Claiming: finding what is due, and leasing it by moving its `time_next` into the future."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import Table
from sqlalchemy.engine import Connection

from homing.errors import ConfigurationError
from homing.store import CRASHED, EXPIRED
from homing.stores.sql.archive import Archive
from homing.stores.sql.claimed import Claimed
from homing.stores.sql.database import NANOSECONDS, Database, chunks, fetch
from homing.stores.sql.properties import Properties
from homing.stores.sql.rows import NEEDED, PLAIN, READ, beyond_plain, is_plain
from homing.stores.sql.statements import Statements

_TOKEN, _NEXT, _SCHEDULED, _LIFE = map(NEEDED.index, ("lock_token", "time_next", "time_scheduled", "time_to_live"))
_SESSION = READ.index("session_id")
_SWEEP = 1.0  # seconds
_EARLY = "early"  # stored by plain SQL to be delivered later
_LARGEST = 2**31 - 1
USUAL = 0  # the priority of a message whose sender said nothing about it
_SPREAD = 97  # a prime: rows are spread by their sequence number over so many places


@dataclass(frozen=True)
class Wanted:
    """Which messages are to be claimed."""

    limit: int
    batch_id: str | None = None
    #: None: the store's own lease, which doubles with each delivery.
    lease: float | None = None
    ids: Collection[str] | None = None
    session_id: str | None = None
    #: Which partitions, of how many.
    partitions: Collection[int] | None = None
    of_partitions: int = 0
    #: Whether messages put aside by `defer` are meant.
    deferred: bool = False
    #: Whether to read the contents too.
    contents: bool = True
    properties: Properties = field(default_factory=Properties)

    def __post_init__(self) -> None:
        if self.limit < 1 or (self.lease is not None and self.lease <= 0):
            raise ConfigurationError(f"a claim needs a positive limit and lease, not {self.limit} and {self.lease}")


# Which buckets a statement that finds due messages looks into.
_ALL, _ONE, _NONE, _BEYOND = "all", "one", "none", "beyond"


class Shape(NamedTuple):
    """What a statement that finds due messages depends on."""

    limit: int
    contents: bool
    plain: bool
    bucket: str
    unless_urgent: bool


class Claims:
    """Claims from one table of messages. Its methods run inside a transaction of the caller's."""

    def __init__(self, database: Database, table: Table, name: str, registry: Table, archive: Archive | None) -> None:
        self._database = database
        self._table = table
        self._name = name
        self._registry = registry
        self._archive = archive
        self._more_urgent = _priorities(table, table.c.priority < USUAL)
        self._less_urgent = _priorities(table, table.c.priority > USUAL)
        self._low = 0
        self._swept = 0.0
        self._statements = Statements()
        #: Whether the messages found last had nothing but what every message has: then no more is asked for.
        self._plain = True
        #: Whether messages of sessions were found: settling one of them lets the next go.
        self.has_sessions = False

    def claim(self, connection: Connection, wanted: Wanted) -> Claimed:
        """Leases what is wanted and due; what crashed or waited too long is kept aside as dead instead."""
        now = self._database.now()
        claimed = Claimed(str(uuid.uuid4()))
        if wanted.batch_id is None:
            self._claim_new(connection, wanted, claimed, now)
            return claimed
        if self._database.dialect.locks_rows:
            # Two who claim for the same batch at once must not both find it unused.
            one = sa.select(self._registry.c.name).where(self._registry.c.name == self._table.name)
            connection.execute(one.with_for_update())
        known, token = self._already_held(connection, wanted, now)
        claimed.token = token or claimed.token
        if known is not None:
            # Whoever leases a batch without reading it knows by its ledger who died of what: being late is no crash.
            self._lease(connection, known, wanted, claimed, now, late=not wanted.contents)
            claimed.again = claimed.size
        if known is None or wanted.ids is not None:
            self._claim_new(connection, wanted, claimed, now)
        return claimed

    def expire(self, connection: Connection) -> int:
        """Keeps aside as dead what nobody holds and is due for longer than its time to live; how many."""
        c, now = self._table.c, self._database.now()
        free = c.time_next.is_not(None) & sa.or_(c.lock_token.is_(None), c.time_next <= now)
        statement = self._table.update().where(free, c.time_scheduled + c.time_to_live <= now)
        return connection.execute(statement.values(**self._dead(EXPIRED, 0, now))).rowcount

    def priorities(self, connection: Connection, *, skip_usual: bool = False) -> Iterator[int]:
        """The priorities at which messages may wait, in order; cheap however many there are.

        The usual one is not looked for: the search would have to pass all entries of messages that are finished but
        not yet vacuumed.
        """
        yield from (row[0] for row in connection.execute(self._more_urgent).all())
        if not skip_usual:
            yield USUAL
        yield from (row[0] for row in connection.execute(self._less_urgent).all())

    def _claim_new(self, connection: Connection, wanted: Wanted, claimed: Claimed, now: int) -> None:
        before = claimed.size
        while True:
            found = self._find(connection, wanted, now)
            if not found:
                return
            self._lease(connection, found, wanted, claimed, now)
            # All that was due is kept aside by now, or was not due after all: there may be more behind it.
            if claimed.size > before or wanted.ids is not None:
                return

    # -- finding -----------------------------------------------------------------------------------------------

    def _already_held(self, connection: Connection, wanted: Wanted, now: int) -> tuple[list[Any] | None, str | None]:
        """The rows this batch still has to settle, and its token while the lease lasts.

        None instead of rows when the batch id was never used: only then may new messages be claimed for it.
        """
        c = self._table.c
        statement = self._select(wanted.contents).where(c.batch_id == wanted.batch_id).order_by(c.priority, c.sequence)
        if self._database.dialect.locks_rows:
            statement = statement.with_for_update()
        found = fetch(connection, statement)
        if not found:
            known = self._archive is not None and self._archive.knows(connection, wanted.batch_id or "")
            return [] if known else None, None
        # Plain SQL that acknowledges leaves the token where it is.
        held = [row for row in found if row[_TOKEN] is not None and row[_NEXT] is not None]
        live = {row[_TOKEN] for row in held if row[_NEXT] > now}
        return held, live.pop() if len(live) == 1 else None

    def _find(self, connection: Connection, wanted: Wanted, now: int) -> Sequence[Any]:
        if wanted.ids is not None:
            return self._find_by_id(connection, wanted, now)
        if wanted.session_id is not None:
            return self._find_in_session(connection, wanted, now)
        if wanted.partitions is None:
            # Mostly there is but one priority, and this one statement is all.
            found = self._find_usual(connection, wanted, now)
            if len(found) >= wanted.limit:
                return found
            priorities = self.priorities(connection, skip_usual=bool(found))
        else:
            found, priorities = [], self.priorities(connection)
        for priority in priorities:
            found += self._find_at(connection, wanted, now, priority, taken=len(found))
            if len(found) >= wanted.limit:
                break
        return found

    def _find_usual(self, connection: Connection, wanted: Wanted, now: int) -> list[Any]:
        """The first due messages of the usual priority, unless more urgent ones wait.

        In front of them the index is littered with entries of messages finished but not yet vacuumed. So the search
        begins where the last one did; from the very front every second, and when it does not find enough.
        """
        low = self._low if time.monotonic() - self._swept < _SWEEP else 0
        found = self._find_at(connection, wanted, now, USUAL, low=low, unless_urgent=True)
        if low and len(found) < wanted.limit:
            low, found = 0, self._find_at(connection, wanted, now, USUAL, unless_urgent=True)
        if not low:
            self._swept = time.monotonic()
        self._low = found[0][_NEXT] if len(found) >= wanted.limit else 0
        return found

    def _find_at(
        self,
        connection: Connection,
        wanted: Wanted,
        now: int,
        priority: int,
        *,
        taken: int = 0,
        low: int = 0,
        unless_urgent: bool = False,
    ) -> list[Any]:
        """The first due messages of one priority; partition by partition, if only some are wanted."""
        found: list[Any] = []
        buckets: list[tuple[str, int]] = [(_ALL, 0)]
        if wanted.partitions is not None:
            # What plain SQL stored belongs to no partition, and what was stored when there were more of them to none of
            # those there are: whoever comes first takes it.
            buckets = [(_NONE, 0), (_BEYOND, wanted.of_partitions), *((_ONE, number) for number in wanted.partitions)]
            random.shuffle(buckets)
        for bucket, number in buckets:
            left = wanted.limit - taken - len(found)
            if left > 0:
                plain = wanted.contents and self._plain
                shape = Shape(left, wanted.contents, plain, bucket, unless_urgent)
                values = {"of_priority": priority, "low": low, "now": now, "of_bucket": number}
                some = fetch(connection, self._statements.get(self._due, shape), values)
                found += self._whole(connection, some, plain) if wanted.contents else some
        return found

    def _whole(self, connection: Connection, found: list[Any], plain: bool) -> list[Any]:
        """These rows with all they have: reading ten columns more costs something even if they are empty."""
        if not plain:
            self._plain = all(map(is_plain, found))
            self._look_for_sessions(found)
            return found
        self._plain = all(row[-1] is None for row in found)
        if self._plain:
            return found
        whole: dict[int, Any] = {}
        for chunk in chunks([row[0] for row in found], self._database.dialect.chunk):
            mine = self._database.dialect.among(self._table.c.sequence, chunk)
            whole.update((row[0], row) for row in fetch(connection, self._select(True).where(mine)))
        self._look_for_sessions(whole.values())
        return [whole[row[0]] for row in found]

    def _look_for_sessions(self, found: Iterable[Any]) -> None:
        self.has_sessions = self.has_sessions or any(row[_SESSION] is not None for row in found)

    def _due(self, shape: Shape) -> sa.Select[Any]:
        """The first due messages of one priority, in the order of the index, which ends where nothing more is due."""
        c = self._table.c
        statement = (
            self._select(shape.contents, plain=shape.plain)
            .where(c.priority == sa.bindparam("of_priority"))
            .where(c.time_next >= sa.bindparam("low"), c.time_next <= sa.bindparam("now"))
            .where(self.may_go())
            .order_by(c.time_next, c.sequence)
            # A literal: a plan made for any limit would rather sort the whole table.
            .limit(sa.literal_column(str(shape.limit)))
        )
        if shape.bucket != _ALL:
            number: sa.BindParameter[int] = sa.bindparam("of_bucket")
            statement = statement.where(
                {_ONE: c.bucket == number, _NONE: c.bucket.is_(None), _BEYOND: c.bucket >= number}[shape.bucket]
            )
        if shape.unless_urgent:
            u = self._table.alias("urgent")
            urgent = (u.c.priority < USUAL) & u.c.time_next.is_not(None)
            statement = statement.where(~sa.exists(sa.select(sa.literal_column("1")).where(urgent)))
        return self._database.dialect.lock_free_rows(statement)

    def may_go(self) -> sa.ColumnElement[bool]:
        """Whether no unfinished message of the same session is before this one."""
        c, e = self._table.c, self._table.alias("earlier")
        before = sa.tuple_(e.c.time_scheduled, e.c.sequence) < sa.tuple_(c.time_scheduled, c.sequence)
        same = sa.and_(e.c.session_id == c.session_id, e.c.time_next.is_not(None), before)
        return sa.or_(c.session_id.is_(None), ~sa.exists(sa.select(sa.literal_column("1")).select_from(e).where(same)))

    def _find_in_session(self, connection: Connection, wanted: Wanted, now: int) -> Sequence[Any]:
        """The first messages of a session, up to one that is not due; none while somebody holds one of them."""
        c, self.has_sessions = self._table.c, True
        mine = (c.session_id == wanted.session_id) & c.time_next.is_not(None)
        statement = self._select(wanted.contents).where(mine).order_by(c.time_scheduled, c.sequence).limit(wanted.limit)
        if self._database.dialect.locks_rows:
            statement = statement.with_for_update()
        found: list[Any] = []
        for row in fetch(connection, statement):
            if _is_later(row, now):
                return found if row[_TOKEN] is None else []
            found.append(row)
        return found

    def _find_by_id(self, connection: Connection, wanted: Wanted, now: int) -> Sequence[Any]:
        """Those of these messages that nobody holds, dead ones included; or those that are deferred."""
        c = self._table.c
        found: list[Any] = []
        # What is due only later is held by nobody either.
        free = sa.or_(c.time_next <= now, c.time_dead.is_not(None), c.time_next.is_not(None) & c.lock_token.is_(None))
        if wanted.deferred:
            free = c.time_next.is_(None) & c.time_dead.is_(None) & c.time_acked.is_(None)
        for chunk in chunks(wanted.ids or (), self._database.dialect.chunk):
            statement = self._select(wanted.contents).where(self._database.dialect.among(c.id, chunk), free)
            if wanted.batch_id is not None:
                elsewhere = sa.or_(c.batch_id.is_(None), c.batch_id != wanted.batch_id, c.lock_token.is_(None))
                statement = statement.where(elsewhere)
            found += fetch(connection, self._database.dialect.lock_free_rows(statement))
        return found

    def _select(self, contents: bool, *, plain: bool = False) -> sa.Select[Any]:
        c = self._table.c
        if plain:
            return sa.select(*(c[name] for name in PLAIN), beyond_plain(self._table))
        return sa.select(*(c[name] for name in (READ if contents else NEEDED)))

    # -- leasing -----------------------------------------------------------------------------------------------

    def _lease(
        self,
        connection: Connection,
        found: Sequence[Any],
        wanted: Wanted,
        claimed: Claimed,
        now: int,
        *,
        late: bool = False,
    ) -> None:
        """Puts these rows under the lease, save those that come to another end. A lease that ran out counts as a crash,
        unless whoever had it is only `late`."""
        fates: dict[str | None, list[Any]] = {None: [], _EARLY: [], CRASHED: [], EXPIRED: []}
        taken, early = fates[None], fates[_EARLY]
        for row in found:
            if row[_TOKEN] is None and row[_NEXT] and row[_LIFE] is None:
                taken.append(row)  # nobody had it before, and nothing is special about it
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
                claimed.read()  # which takes less time than it takes the server to write

    def _leases(self, wanted: Wanted, token: str, now: int, late: bool) -> tuple[sa.Update, dict[str, Any]]:
        """The statement that leases, and its parameters."""
        properties = wanted.properties if wanted.lease is None else None
        parameters: dict[str, Any] = {"now": now, "token": token, "batch": wanted.batch_id}
        if wanted.lease is not None:
            parameters["until"] = now + int(wanted.lease * NANOSECONDS)
        return self._statements.get(self._leasing, properties, wanted.ids is not None, late), parameters

    def _leasing(self, properties: Properties | None, named: bool, late: bool) -> sa.Update:
        """`properties` of the store whose own lease it is; None when the lease was asked for."""
        c, now, token = self._table.c, sa.bindparam("now", type_=sa.BigInteger), sa.bindparam("token", type_=sa.String)
        ran_out = c.lock_token.is_not(None) & (c.time_next <= now)
        # In this order: MySQL assigns from left to right, and each assignment sees those before it.
        values: dict[str, Any] = {
            "crashes": c.crashes if late else _one_more(c.crashes, ran_out),
            "time_next": sa.bindparam("until") if properties is None else now + self._own_lease(properties),
            "epoch": _one_more(c.epoch, c.lock_token.is_(None) | (c.lock_token != token)),
            "lock_token": token,
            # Even when there is none: whoever claimed it for a batch before must not find it there again.
            "batch_id": sa.bindparam("batch", type_=sa.String),
        }
        if named:
            values["time_dead"] = None
        return self._changes(values)

    def _own_lease(self, properties: Properties) -> Any:
        """How long the store's own lease is: doubled with each delivery up to its cap."""
        c = self._table.c
        *growing, cap = properties.doublings(properties.ack_wait)

        def length(wait: int, jitter: float) -> Any:
            spread = c.sequence % _SPREAD * sa.literal(int(wait * jitter / _SPREAD), sa.BigInteger)
            return sa.literal(wait, sa.BigInteger) + (spread if jitter else 0)

        lengths = [(c.epoch == n, length(wait, properties.jitter if n else 0.0)) for n, wait in enumerate(growing)]
        last = length(cap, properties.jitter if growing else 0.0)
        return sa.case(*lengths, else_=last) if lengths else last

    def _dead(self, reason: str, max_deliveries: int, now: int) -> dict[str, Any]:
        why = "it was due for longer than its time to live"
        if reason == CRASHED:
            why = f"its lease ran out {max_deliveries} times: whoever handles it dies"
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


def _fate(row: Sequence[Any], wanted: Wanted, now: int, late: bool) -> str | None:
    """What a due message comes to instead of being leased; None for nothing else."""
    _, _, crashes, token, due, scheduled, life = row[: len(NEEDED)]
    try:
        if due == 0 and scheduled > now:
            return _EARLY
        if not late and token is not None and due <= now and crashes + 1 >= wanted.properties.max_deliveries:
            return CRASHED
        held = token is not None and due > now
        if life is not None and scheduled + life <= now and wanted.ids is None and not held:
            return EXPIRED
    except TypeError:
        return None  # people wrote something else than numbers there: whoever reads it will say so
    return None


def _is_later(row: Sequence[Any], now: int) -> bool:
    try:
        return bool((row[_NEXT] or row[_SCHEDULED]) > now)
    except TypeError:
        return False


def _one_more(column: sa.Column[Any], when: sa.ColumnElement[bool]) -> sa.ColumnElement[Any]:
    """The column counted up, unless somebody wrote the largest number into it that it holds."""
    return column + sa.case((when & (column < _LARGEST), 1), else_=0)


def _priorities(table: Table, where: sa.ColumnElement[bool]) -> sa.Select[Any]:
    """The priorities in the index, each found by jumping over all messages of the one before."""
    waiting = table.c.time_next.is_not(None) & where
    first = sa.select(sa.func.min(table.c.priority).label("priority")).where(waiting)
    found = first.cte("priorities", recursive=True)
    more = sa.select(sa.func.min(table.c.priority)).where(table.c.priority > found.c.priority, waiting)
    found = found.union_all(sa.select(more.scalar_subquery()).where(found.c.priority.is_not(None)))
    return sa.select(found.c.priority).where(found.c.priority.is_not(None)).order_by(found.c.priority)
