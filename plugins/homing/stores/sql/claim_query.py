"""Finds the messages to be claimed: those that are due, in order, and those that a batch holds already."""

from __future__ import annotations

import random
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import Table
from sqlalchemy.engine import Connection

from homing.portions import portions
from homing.row import HEADERS, NEEDED, READ
from homing.stores.sql.archive import Archive
from homing.stores.sql.database import Database, chunks, fetch
from homing.stores.sql.header_columns import HeaderColumns
from homing.stores.sql.properties import SqlProperties
from homing.stores.sql.row_sizes import weight
from homing.stores.sql.rows import FRESH, beyond_fresh, is_fresh
from homing.stores.sql.statement_cache import Statements
from homing.stores.validation import check_claim

_TOKEN, _NEXT, _SCHEDULED = map(NEEDED.index, ("lock_token", "time_next", "time_scheduled"))
_SESSION = READ.index("session_id")
_SWEEP = 1.0  # seconds
#: How many bytes the contents have at most that one claim hands out; a single message may have more.
CLAIMED_BYTES = 64 * 2**20
USUAL = 0  # the priority of a message whose sender said nothing about it


@dataclass(frozen=True)
class ClaimRequest:
    """Which messages are to be claimed."""

    limit: int
    batch_id: str | None = None
    #: For how many seconds to lease; None for the store's own lease, which doubles with each delivery.
    lease: float | None = None
    ids: Collection[str] | None = None
    session_id: str | None = None
    #: Which partitions; None for all. `of_partitions` is how many the store has.
    partitions: Collection[int] | None = None
    of_partitions: int = 0
    #: Whether messages put aside by `defer` are meant.
    deferred: bool = False
    #: Whether to read the contents too.
    contents: bool = True
    #: Whether only the weights of the messages are asked for. Each row then ends with its weight, and is not locked.
    weighed: bool = False
    properties: SqlProperties = field(default_factory=SqlProperties)

    def __post_init__(self) -> None:
        check_claim(self.limit, self.lease)


# Which buckets a statement that finds due messages looks into.
_ALL, _ONE, _NONE, _BEYOND = "all", "one", "none", "beyond"


class Shape(NamedTuple):
    """What decides the text of a statement that finds due messages. Statements are kept by it."""

    limit: int
    contents: bool
    fresh: bool
    weighed: bool
    bucket: str
    unless_urgent: bool


class ClaimQuery:
    """Finds rows of one table of messages, and locks them where the database can, inside the caller's transaction.

    Without contents, a row has the values of NEEDED. With contents, it has the values of READ; or, for a fresh message,
    the values of FRESH and a None.
    """

    def __init__(self, database: Database, table: Table, archive: Archive | None) -> None:
        self._database = database
        self._table = table
        self._archive = archive
        self._columns = HeaderColumns.of(table)
        self._more_urgent = _priorities(table, table.c.priority < USUAL)
        self._less_urgent = _priorities(table, table.c.priority > USUAL)
        self._low = 0
        self._swept = 0.0
        self._statements = Statements()
        self._failures: Table | None = None
        #: Whether most messages found last were fresh. If so, the next search reads no other columns at first.
        self._fresh = True
        #: Whether messages with a session were found. When one of these is settled, the next of its session may go.
        self.has_sessions = False

    def wait_for(self, failures: Table) -> None:
        """From now on, a session waits while the table `failures` has an unfinished failure of one of its messages."""
        self._failures = failures
        self._statements = Statements()

    def find(self, connection: Connection, wanted: ClaimRequest, now: int) -> Sequence[Any]:
        """Returns the rows that are wanted and due, locked, in the order in which they are handed out."""
        if wanted.ids is not None:
            return self._by_id(connection, wanted, now)
        if wanted.session_id is not None:
            return self._in_session(connection, wanted, now)
        if wanted.partitions is None:
            # Mostly there is but one priority, and this one statement is all.
            found = self._usual(connection, wanted, now)
            if len(found) >= wanted.limit:
                return found
            priorities = self.priorities(connection, skip_usual=bool(found))
        else:
            found, priorities = [], self.priorities(connection)
        for priority in priorities:
            found += self._at(connection, wanted, now, priority, taken=len(found))
            if len(found) >= wanted.limit:
                break
        return found

    def light_enough(self, connection: Connection, wanted: ClaimRequest, now: int) -> ClaimRequest:
        """Returns `wanted` with its limit lowered where the contents would otherwise be more than CLAIMED_BYTES.

        The limit stays at least 1.
        """
        most = CLAIMED_BYTES // wanted.properties.max_message_bytes
        if not wanted.contents or wanted.ids is not None or wanted.limit <= max(1, most):
            return wanted
        found = self.find(connection, replace(wanted, contents=False, weighed=True), now)
        first = next(portions(found, lambda row: int(row[-1] or 0), most_bytes=CLAIMED_BYTES), found)
        return wanted if len(first) == len(found) else replace(wanted, limit=len(first))

    def held_by_batch(
        self, connection: Connection, wanted: ClaimRequest, now: int
    ) -> tuple[list[Any] | None, str | None]:
        """Returns the rows that this batch still has to settle, and the token of its lease, or None if that ran out.

        Instead of the rows, returns None when the batch id was never used: only then may it claim new messages.
        """
        c = self._table.c
        statement = self._select(wanted.contents).where(c.batch_id == wanted.batch_id).order_by(c.priority, c.sequence)
        if self._database.dialect.locks_rows:
            statement = statement.with_for_update()
        found = self._fetch(connection, statement, wanted.contents)
        if not found:
            known = self._archive is not None and self._archive.knows(connection, wanted.batch_id or "")
            return [] if known else None, None
        # A message that plain SQL has acknowledged still has its token, but no `time_next`.
        held = [row for row in found if row[_TOKEN] is not None and row[_NEXT] is not None]
        live = {row[_TOKEN] for row in held if row[_NEXT] > now}
        return held, live.pop() if len(live) == 1 else None

    def priorities(self, connection: Connection, *, skip_usual: bool = False) -> Iterator[int]:
        """Yields the priorities at which messages may wait, in order. Cheap, however many messages there are.

        The usual priority is yielded without a look: a search for it would have to pass the index entries of all
        messages that are finished but not yet vacuumed.
        """
        yield from (row[0] for row in connection.execute(self._more_urgent).all())
        if not skip_usual:
            yield USUAL
        yield from (row[0] for row in connection.execute(self._less_urgent).all())

    def may_go(self) -> sa.ColumnElement[bool]:
        """A condition: a message may be handed out now, as far as its session says.

        No unfinished message of its session is before it, and no failure of its session waits for a replay.
        """
        c, e = self._table.c, self._table.alias("earlier")
        before = sa.tuple_(e.c.time_scheduled, e.c.sequence) < sa.tuple_(c.time_scheduled, c.sequence)
        same = sa.and_(e.c.session_id == c.session_id, e.c.time_next.is_not(None), before)
        first = ~sa.exists(sa.select(sa.literal_column("1")).select_from(e).where(same))
        return sa.or_(c.session_id.is_(None), sa.and_(first, self._none_failed()))

    def _none_failed(self) -> sa.ColumnElement[bool]:
        if self._failures is None:
            return sa.true()
        f = self._failures.c
        same = (f.session_id == self._table.c.session_id) & f.time_next.is_not(None)
        # Not an EXISTS: PostgreSQL and MariaDB may look through all failures for it.
        one = sa.select(f.sequence).where(same).limit(sa.literal_column("1")).correlate(self._table)
        return one.scalar_subquery().is_(None)

    def _usual(self, connection: Connection, wanted: ClaimRequest, now: int) -> list[Any]:
        """Returns the first due messages of the usual priority; none if more urgent ones wait.

        In the index, entries of messages that are finished but not yet vacuumed stand before them. To pass these by,
        the search begins where the last one found its first message. Once a second, and when it does not find enough,
        it begins at the front.
        """
        low = self._low if time.monotonic() - self._swept < _SWEEP else 0
        found = self._at(connection, wanted, now, USUAL, low=low, unless_urgent=True)
        if low and len(found) < wanted.limit:
            low, found = 0, self._at(connection, wanted, now, USUAL, unless_urgent=True)
        if not low:
            self._swept = time.monotonic()
        self._low = found[0][_NEXT] if len(found) >= wanted.limit else 0
        return found

    def _at(
        self,
        connection: Connection,
        wanted: ClaimRequest,
        now: int,
        priority: int,
        *,
        taken: int = 0,
        low: int = 0,
        unless_urgent: bool = False,
    ) -> list[Any]:
        """Returns the first due messages of one priority. If only some partitions are wanted, asks for each of them."""
        found: list[Any] = []
        buckets = _buckets(wanted.partitions, wanted.of_partitions)
        random.shuffle(buckets)
        for bucket, number in buckets:
            left = wanted.limit - taken - len(found)
            if left > 0:
                fresh = wanted.contents and self._fresh
                shape = Shape(left, wanted.contents, fresh, wanted.weighed, bucket, unless_urgent)
                values = {"of_priority": priority, "low": low, "now": now, "of_bucket": number}
                statement = self._statements.get(self._due, shape)
                some = self._fetch(connection, statement, shape.contents and not fresh and not shape.weighed, values)
                found += self._whole(connection, some, fresh) if wanted.contents else some
        return found

    def _whole(self, connection: Connection, found: list[Any], fresh: bool) -> list[Any]:
        """Returns these rows with all values of their messages: it reads those that are not fresh once more, whole."""
        if not fresh:
            self._fresh = _most(map(is_fresh, found))
            self._look_for_sessions(found)
            return found
        touched = [row[0] for row in found if row[-1] is not None]
        if not touched:
            return found
        self._fresh = len(touched) * 2 < len(found)
        whole: dict[int, Any] = {}
        for chunk in chunks(touched, self._database.dialect.chunk):
            mine = self._database.dialect.among(self._table.c.sequence, chunk)
            whole.update((row[0], row) for row in self._fetch(connection, self._select(True).where(mine), True))
        self._look_for_sessions(whole.values())
        return [row if row[-1] is None else whole[row[0]] for row in found]

    def _look_for_sessions(self, found: Iterable[Any]) -> None:
        self.has_sessions = self.has_sessions or any(row[_SESSION] is not None for row in found)

    def _due(self, shape: Shape) -> sa.Select[Any]:
        """The statement that finds the first due messages of one priority, in the order of the index."""
        c = self._table.c
        statement = (
            self._select(shape.contents, fresh=shape.fresh, weighed=shape.weighed)
            .where(c.priority == sa.bindparam("of_priority"))
            .where(c.time_next >= sa.bindparam("low"), c.time_next <= sa.bindparam("now"))
            .where(self.may_go())
            .order_by(c.time_next, c.sequence)
            # A literal: a plan that has to fit any limit may sort the whole table.
            .limit(sa.literal_column(str(shape.limit)))
        )
        if shape.bucket != _ALL:
            statement = statement.where(self._in_bucket(shape.bucket, sa.bindparam("of_bucket")))
        if shape.unless_urgent:
            u = self._table.alias("urgent")
            urgent = (u.c.priority < USUAL) & u.c.time_next.is_not(None)
            statement = statement.where(~sa.exists(sa.select(sa.literal_column("1")).where(urgent)))
        return statement if shape.weighed else self._database.dialect.lock_free_rows(statement)

    def buckets(self, share: Collection[int] | None, partitions: int) -> list[sa.ColumnElement[bool]]:
        """Returns conditions: a message that meets one of them is in one of these partitions, of so many."""
        return [self._in_bucket(kind, sa.literal(number)) for kind, number in _buckets(share, partitions)]

    def _in_bucket(self, kind: str, number: sa.ColumnElement[int]) -> sa.ColumnElement[bool]:
        bucket = self._table.c.bucket
        conditions = {_ALL: sa.true(), _ONE: bucket == number, _NONE: bucket.is_(None), _BEYOND: bucket >= number}
        return conditions[kind]

    def _in_session(self, connection: Connection, wanted: ClaimRequest, now: int) -> Sequence[Any]:
        """Returns the first messages of a session, up to one that is not due.

        Returns none while one of them is leased, or a failure of the session waits for a replay.
        """
        c, self.has_sessions = self._table.c, True
        mine = (c.session_id == wanted.session_id) & c.time_next.is_not(None) & self._none_failed()
        needed = sa.select(*(c[name] for name in NEEDED), weight(self._table))
        statement = (needed if wanted.weighed else self._select(wanted.contents)).where(mine)
        statement = statement.order_by(c.time_scheduled, c.sequence).limit(wanted.limit)
        if self._database.dialect.locks_rows and not wanted.weighed:
            statement = statement.with_for_update()
        found: list[Any] = []
        for row in self._fetch(connection, statement, wanted.contents and not wanted.weighed):
            if _is_later(row, now):
                return found if row[_TOKEN] is None else []
            found.append(row)
        return found

    def _by_id(self, connection: Connection, wanted: ClaimRequest, now: int) -> Sequence[Any]:
        """Returns the messages with these ids that are not leased, dead ones included; or only the deferred ones."""
        c = self._table.c
        found: list[Any] = []
        # A message that is due later is not leased either.
        free = sa.or_(c.time_next <= now, c.time_dead.is_not(None), c.time_next.is_not(None) & c.lock_token.is_(None))
        if wanted.deferred:
            free = c.time_next.is_(None) & c.time_dead.is_(None) & c.time_acked.is_(None)
        for chunk in chunks(wanted.ids or (), self._database.dialect.chunk):
            statement = self._select(wanted.contents).where(self._database.dialect.among(c.id, chunk), free)
            if wanted.batch_id is not None:
                elsewhere = sa.or_(c.batch_id.is_(None), c.batch_id != wanted.batch_id, c.lock_token.is_(None))
                statement = statement.where(elsewhere)
            found += self._fetch(connection, self._database.dialect.lock_free_rows(statement), wanted.contents)
        return found

    def _fetch(
        self, connection: Connection, statement: sa.Select[Any], whole: bool, values: dict[str, Any] | None = None
    ) -> list[Any]:
        """Returns the rows. `whole` rows get what the application's own columns hold in their headers."""
        found = fetch(connection, statement, values)
        return self._columns.merge_all(found, HEADERS) if whole else found

    def _select(self, contents: bool, *, fresh: bool = False, weighed: bool = False) -> sa.Select[Any]:
        c = self._table.c
        if weighed:
            return sa.select(c.sequence, c.time_next, weight(self._table))
        if fresh:
            return sa.select(*(c[name] for name in FRESH), beyond_fresh(self._table))
        if contents:
            return sa.select(*(c[name] for name in READ), *self._columns.selected(self._table))
        return sa.select(*(c[name] for name in NEEDED))


def _buckets(share: Collection[int] | None, partitions: int) -> list[tuple[str, int]]:
    """Returns the buckets in which the messages of these partitions, of so many, lie.

    A message that plain SQL stored has no bucket. One that was stored when there were more partitions may have a bucket
    beyond those there are now. Every consumer looks for both.
    """
    if share is None:
        return [(_ALL, 0)]
    return [(_NONE, 0), (_BEYOND, partitions), *((_ONE, number) for number in share)]


def _is_later(row: Sequence[Any], now: int) -> bool:
    try:
        return bool((row[_NEXT] or row[_SCHEDULED]) > now)
    except TypeError:
        return False


def _most(are: Iterable[bool]) -> bool:
    answers = list(are)
    return sum(answers) * 2 > len(answers)


def _priorities(table: Table, where: sa.ColumnElement[bool]) -> sa.Select[Any]:
    """The statement that finds the priorities in the index. It jumps from each priority to the next."""
    waiting = table.c.time_next.is_not(None) & where
    first = sa.select(sa.func.min(table.c.priority).label("priority")).where(waiting)
    found = first.cte("priorities", recursive=True)
    more = sa.select(sa.func.min(table.c.priority)).where(table.c.priority > found.c.priority, waiting)
    found = found.union_all(sa.select(more.scalar_subquery()).where(found.c.priority.is_not(None)))
    return sa.select(found.c.priority).where(found.c.priority.is_not(None)).order_by(found.c.priority)
