"""SqlStore: messages in one SQL table, leased by moving their `time_next` into the future."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cached_property, partial
from itertools import compress
from operator import not_
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection

from homing import store as contract
from homing.errors import (
    ConfigurationError,
    LeaseLostError,
    NotInFlightError,
    StoreError,
    StoreUnavailableError,
    TableMissingError,
    TooLargeError,
    UnstorableContentError,
)
from homing.failure import FAILURE_STORE
from homing.ids import ordered_ids
from homing.invocation.fork_safety import start_over_after_fork
from homing.invocation.rate_limit import RateLimiter
from homing.message import ACKNOWLEDGED, Message
from homing.pipeline_store import PipelineStore
from homing.row import NANOSECONDS, to_nanoseconds
from homing.size_limit import SizeLimit
from homing.store import BatchLease
from homing.stores.bulk import BulkStore
from homing.stores.options import read_options, refuse_repeated
from homing.stores.sql.access import SqlAccess
from homing.stores.sql.archive import Archive
from homing.stores.sql.batches import Batches
from homing.stores.sql.claim_query import ClaimQuery, ClaimRequest
from homing.stores.sql.claim_result import Claimed
from homing.stores.sql.claims import Claims
from homing.stores.sql.database import Database, chunks
from homing.stores.sql.engine import anchored
from homing.stores.sql.future_times import Strays
from homing.stores.sql.header_columns import HeaderColumns
from homing.stores.sql.insert import Inserts, NewRows
from homing.stores.sql.ledger import SqlLedger
from homing.stores.sql.new_row import plain_row, to_row
from homing.stores.sql.notify import WakeUp, notify
from homing.stores.sql.operations import SqlOperations
from homing.stores.sql.properties import (
    ARCHIVED,
    OPTION_NAMES,
    LiveProperties,
    SqlOptions,
    SqlProperties,
    check_rest,
)
from homing.stores.sql.queries import SqlView
from homing.stores.sql.removal import SqlErasure
from homing.stores.sql.rows import id_of
from homing.stores.sql.scans import SqlScans
from homing.stores.sql.schema import NEVER, apart, messages_table, registry_table
from homing.stores.sql.settlements import KnownLease, Leased, Settlements
from homing.stores.sql.tables import identity_of
from homing.stores.validation import check_partitions, outcomes_of

_FORGET_FROM = 100_000  # leases remembered for acknowledging by id alone
_PURGE_EVERY = 60.0  # seconds
_BESIDE = 100  # characters of a row at most that is nothing but a content


def open_sql_store(url: str, *, read_only: bool = False) -> SqlStore:
    """Opens `sqlite:///path?store=name&ack_wait=30`, likewise postgresql:// and mysql://; see docs/stores.md.

    With `read_only` the database refuses whatever would write, and a table that is missing is an error.

    Raises ConfigurationError for a bad option, MissingExtraError when the database's driver is not installed.
    """
    try:
        parsed = sa.make_url(url)
    except (sa.exc.ArgumentError, ValueError):  # which quote the URL
        raise ConfigurationError("this is not a database URL such as sqlite:///inbox.db?store=orders") from None
    refuse_repeated(name for name, values in parsed.normalized_query.items() for _ in values)
    properties = read_options(SqlProperties, parsed.query)
    options = read_options(SqlOptions, parsed.query, properties=properties, read_only=read_only)
    rest = parsed.difference_update_query(OPTION_NAMES)
    check_rest(rest)
    return SqlStore(rest, options.name, options=options)


class SqlStore(BulkStore, PipelineStore):
    """Messages in a SQL table.

    Its work is divided among objects that share the table: `Inserts`, `ClaimQuery`, `Claims`, `Settlements`,
    `SqlView`, `Batches`, `SqlAccess`, `SqlErasure`.
    """

    features = contract.STORE_KINDS["sql"].features

    def __init__(
        self,
        url: URL,
        name: str,
        *,
        options: SqlOptions | None = None,
        clock: Callable[[], int] | None = None,
        **properties: Any,
    ) -> None:
        options = options or SqlOptions()
        self.name = name
        self._url = url = anchored(url)
        self._options = replace(options, name=name, properties=options.properties.changed(properties))
        self._clock = clock
        self._table = self._table_of(name)
        self._database = Database(
            url,
            name,
            clock,
            read_only=options.read_only,
            timeout=options.timeout,
            durability=options.durability,
            require_tls=options.require_tls,
        )
        self._database.require(self._table)
        self._check(self._options.properties)
        registry = registry_table()
        self._live = LiveProperties(self._database, registry, self._table.name, self._options.properties)
        self._inserts = Inserts(self._database, self._table, self._table.name)
        self._columns = HeaderColumns(self._options.column_types, typed=self._database.dialect.keeps_types)
        archive = Archive(self._database, self._table) if self._database.dialect.drops_partitions else None
        self._finder = finder = ClaimQuery(self._database, self._table, archive)
        self._claims = Claims(self._database, self._table, name, registry, finder)
        self._settlements = Settlements(self._database, self._table, name, finder, archive)
        self.view: SqlView = SqlView(self._database, self._table, finder, archive)
        self._batches = Batches(self._database, self._table, archive)
        self.erasure: SqlErasure = SqlErasure(self._database, self._table, name, archive)
        self._strays = Strays(self._database, self._table, name)
        self.access: SqlAccess = SqlAccess(self._database, self._table, name, self._live, archive)
        self._wake_up = WakeUp(self._database, self._table.name)
        self._pace: RateLimiter | None = None
        self._in_flight: dict[str, str] = {}
        self._purged = time.monotonic()
        start_over_after_fork(self)

    def start_over(self) -> None:
        """In a forked process. What was retrieved before may be settled there too, by its id as well: the lease is the
        database's, and of two who settle the second is refused."""
        self._wake_up.start_over()
        self._pace = None

    # -- the three verbs ---------------------------------------------------------------------------------------

    def retrieve(self) -> Message | None:
        claimed = self.claim(1)
        return claimed[0] if claimed else None

    def acknowledge(self, message: str | Message, success: bool = True, *, transaction: Any = None) -> None:
        self._settle([self._held(message)], [success], transaction)

    def close(self) -> None:
        self._wake_up.close()
        self._database.close()

    # -- many at a time ----------------------------------------------------------------------------------------

    def store_many(self, contents: Iterable[Any], *, transaction: Any = None) -> list[str]:
        """Stores contents, or whole Messages with their id, headers and properties; all or none."""
        properties = self._live.current(transaction)
        window, limit = properties.duplicate_window, self._size_limit(properties)
        now, parts, columns = self._database.now(), self._options.partitions, self._columns
        new_ids, surely = ordered_ids(), limit.surely - _BESIDE

        def row(item: Any) -> dict[str, Any]:
            if isinstance(item, Message):
                made = to_row(item, now, partitions=parts, columns=columns)
                limit.check(self.name, item.id, item.content, made)
            else:
                made = plain_row(next(new_ids), item, now, partitions=parts)
                if len(made["message"]) > surely:
                    limit.check(self.name, made["id"], item, made)
            return made

        new = NewRows(contents, row)
        if not self._database.dialect.locks_rows:
            new.make()  # before other transactions have to wait for this one
        try:
            self._insert(new, window, transaction)
        except (StoreUnavailableError, TableMissingError):
            raise
        except StoreError:
            fault = self._fault_of_a_header(new, transaction)
            if fault is None:
                raise
            raise fault from None  # the database's own words may repeat what is in the header
        return [one["id"] for one in new]

    def _insert(self, new: NewRows, window: float, transaction: Any) -> None:
        if new and transaction is None:
            self._database.write(lambda connection: self._inserts.insert(connection, new, window))
        elif new:
            with self._database.within(transaction) as connection:
                self._inserts.insert(connection, new, window, own=False)

    def _fault_of_a_header(self, new: NewRows, transaction: Any) -> UnstorableContentError | None:
        if not self._options.column_types:
            return None
        find = partial(self._inserts.find_fault, new=new, columns=self._options.column_types)
        if transaction is None:
            return self._database.write(find)
        with self._database.within(transaction) as connection:
            return find(connection)

    @property
    def max_message_bytes(self) -> int:
        return self._live.current().max_message_bytes

    def refusal(self, message: Message) -> TooLargeError | None:
        try:
            made = to_row(message, 0)
            self._size_limit(self._live.current()).check(self.name, message.id, message.content, made)
        except TooLargeError as error:
            return error
        return None

    def claim(
        self,
        limit: int | None = None,
        *,
        batch_id: str | None = None,
        lease: float | None = None,
        session_id: str | None = None,
        partitions: Collection[int] | None = None,
    ) -> list[Message]:
        """As in the contract; without a `limit`, the store's `batch_size`."""
        if limit is None:
            limit = self._live.current().batch_size
        share = self._share(partitions)
        known = self._options.partitions
        wanted = ClaimRequest(limit, batch_id, lease, session_id=session_id, partitions=share, of_partitions=known)
        return self._hand_out(self._claim(wanted))

    def settle(
        self, messages: Sequence[Message], success: bool | Sequence[bool] = True, *, transaction: Any = None
    ) -> None:
        self._settle(messages, outcomes_of(messages, success), transaction)

    def renew(self, held_: BatchLease | Message | Sequence[Message], lease: float) -> None:
        if isinstance(held_, BatchLease):
            if not self._batches.renew(held_, self._database.now() + int(lease * NANOSECONDS)):
                raise LeaseLostError(f"the lease on batch {held_.batch_id} in store {self.name!r} ran out or was taken")
            return
        messages = [held_] if isinstance(held_, Message) else held_
        self._settlements.apply([(messages, self._settlements.extend(lease))])

    def rest(self, message: Message, *, resting: bool) -> None:
        self._settlements.apply([([message], self._settlements.rest(resting))])

    # -- other ends a message can come to ----------------------------------------------------------------------

    def cancel(self, message_id: str) -> bool:
        c, now = self._table.c, self._database.now()
        due = apart(c.time_next)
        future = sa.or_(due > now, (due == 0) & (c.time_scheduled > now))
        never = c.lock_token.is_(None) & (c.epoch == 0) & future
        statement = self._table.delete().where(c.id == message_id, never)
        return bool(self._database.write(lambda connection: connection.execute(statement).rowcount))

    def defer(self, message: str | Message) -> None:
        self._settlements.apply([([self._held(message)], self._settlements.put_aside())])
        self._forget([self._held(message)])

    def receive_deferred(self, ids: Collection[str], *, lease: float | None = None) -> list[Message]:
        if not ids:
            return []
        return self._hand_out(self._claim(ClaimRequest(len(ids), lease=lease, ids=ids, deferred=True)))

    def dead_letter(self, message: str | Message, *, reason: str, description: str | None = None) -> None:
        who = self._held(message)
        self._settlements.apply([([who], self._settlements.dead_letter(reason, description))])
        self._forget([who])

    def reschedule(self, ids: Collection[str], at: datetime, *, delivery_count: int | None = None) -> int:
        c, when = self._table.c, max(1, to_nanoseconds(at))
        values: dict[str, Any] = {"time_next": when, "time_scheduled": when, "lock_token": None, "batch_id": None}
        if delivery_count is not None:
            values["epoch"] = delivery_count

        def work(connection: Connection) -> int:
            changed = 0
            due = apart(c.time_next)
            free = (due != NEVER) & sa.or_(c.lock_token.is_(None), due <= self._database.now())
            for chunk in chunks(ids, self._database.dialect.chunk):
                where = self._database.dialect.among(c.id, chunk) & free
                changed += connection.execute(self._table.update().where(where).values(**values)).rowcount
            if changed:
                notify(connection, self._table.name)
            return changed

        return self._database.write(work)

    # -- looking, without claiming -----------------------------------------------------------------------------

    def browse(
        self, limit: int = 100, *, state: str | None = None, after: int = 0, ids: Collection[str] | None = None
    ) -> list[Message]:
        return self.view.browse(limit, state, after, ids)

    def browse_written(self, limit: int, *, ids: Collection[str], after: int = 0) -> list[Message]:
        return self.view.browse(limit, None, after, ids, written=True)

    def count(self) -> dict[str, int]:
        return self.view.count()

    def oldest_age(self) -> float | None:
        return self.view.oldest_age()

    def require_writable(self) -> None:
        self._live.touch()

    def require_partitions(self, partitions: Collection[int]) -> None:
        check_partitions(partitions, self._options.partitions, self.name)

    def has_due(self, *, partitions: Collection[int] | None = None) -> bool:
        share = self._share(partitions)
        self._bring_back_strays()
        return self.view.has_due(share, self._options.partitions)

    @property
    def wakes(self) -> bool:
        return self._url.get_backend_name().startswith("postgres")

    def wait(
        self, timeout: float, *, ended: Callable[[], bool] = bool, partitions: Collection[int] | None = None
    ) -> bool:
        next_due = partial(self._next_due, self._share(partitions))
        return self._wake_up.wait(timeout, next_due, listens=self.wakes, ended=ended)

    def wake(self) -> None:
        self._wake_up.wake()

    def due_in(self, *, partitions: Collection[int] | None = None) -> float | None:
        due = self._next_due(self._share(partitions))
        return None if due is None else max(0.0, (due - self._database.now()) / NANOSECONDS)

    @property
    def place(self) -> tuple[str, str]:
        return self._url.render_as_string(hide_password=True), self._table.name

    # -- housekeeping ------------------------------------------------------------------------------------------

    def purge(self, older_than: float | None = None, *, state: str = ACKNOWLEDGED) -> int:
        return self.view.purge(self._live.current().kept_for if older_than is None else older_than, state)

    def purgeable(self, older_than: float | None = None, *, state: str = ACKNOWLEDGED) -> int:
        return self.view.purgeable(self._live.current().kept_for if older_than is None else older_than, state)

    def expire(self) -> int:
        return self._database.write(self._claims.expire)

    def configure(self, **properties: Any) -> SqlProperties:
        """Changes properties for every consumer of this store, running ones within seconds; None takes one back."""
        changed = SqlProperties().changed({name: value for name, value in properties.items() if value is not None})
        self._check(changed)
        if changed.acknowledged == ARCHIVED:
            self.access.make_archive()  # who acknowledges later may have no right to make tables
        return self._live.change(properties)

    @property
    def properties(self) -> SqlProperties:
        return self._live.current()

    def ledger(self) -> SqlLedger:
        return SqlLedger(self._database, self.name)

    def operations(self) -> SqlOperations:
        return SqlOperations(self._database, self.name)

    def scans(self) -> SqlScans:
        return SqlScans(self._database, self._table, self._batches)

    def refuse_unknown(self) -> None:
        self.access.refuse_unknown()

    def sibling(self, name: str) -> SqlStore:
        return SqlStore(self._url, name, options=self._options, clock=self._clock)

    @cached_property
    def identity(self) -> str:
        return self._database.read(lambda connection: identity_of(connection, self._table.name))

    def failures(self) -> SqlStore:
        name = f"{self.name}{FAILURE_STORE}"
        if not self._options.read_only:  # then nothing is claimed, and a table that is missing is not made
            table = self._table_of(name)
            self._database.require(table)
            self._finder.wait_for(table)
        return self.sibling(name)

    # -- batches, without their contents -----------------------------------------------------------------------

    def lease_batch(
        self,
        limit: int,
        *,
        batch_id: str,
        lease: float,
        ids: Collection[str] | None = None,
        partitions: Collection[int] | None = None,
    ) -> BatchLease | None:
        share, known = self._share(partitions), self._options.partitions
        wanted = ClaimRequest(limit, batch_id, lease, ids, partitions=share, of_partitions=known, contents=False)
        held = self._claim(wanted).lease(batch_id)
        if held is None or self._database.dialect.keeps_types:
            return held
        renamed = self._batches.rename(held, lambda why: self._settlements.dead_letter(contract.UNREADABLE, why).values)
        return replace(held, size=held.size - renamed) if held.size > renamed else None

    def knows_batch(self, batch_id: str) -> bool:
        return self._batches.knows(batch_id)

    def held_batch(self, batch_id: str) -> BatchLease | None:
        return self._batches.held(batch_id)

    def batch_rows(
        self,
        held: BatchLease,
        *,
        after: int = 0,
        upto: int | None = None,
        page: int = 1000,
        ids: Collection[str] | None = None,
    ) -> Iterator[dict[str, Any]]:
        return self._batches.rows(held, after, upto, page) if ids is None else self._batches.some_rows(held, ids)

    def settle_batch(self, held: BatchLease, ids: Collection[str], success: bool = True) -> None:
        self._settle([KnownLease(message_id, held.lock_token) for message_id in ids], [success] * len(ids), None)

    def count_crash(self, held: BatchLease, ids: Collection[str]) -> None:
        self._batches.count_crash(held, ids)

    def dead_letter_batch(self, held: BatchLease, ids: Collection[str], reason: str, description: str) -> None:
        if ids:
            known = [KnownLease(message_id, held.lock_token) for message_id in ids]
            self._settlements.apply([(known, self._settlements.dead_letter(reason, description))])

    def forget_batch(self, held: BatchLease, ids: Collection[str]) -> None:
        if not self._batches.forget(held, ids):
            raise LeaseLostError(f"the lease on batch {held.batch_id} in store {self.name!r} ran out or was taken")

    def forget_finished(self, ids: Collection[str]) -> None:
        self._database.write(lambda connection: self._inserts.forget(connection, list(ids), 0.0))

    def dead_messages(self, skip: int = 0) -> list[dict[str, Any]]:
        if not self._database.dialect.keeps_types:
            self._batches.rename(None, lambda _why: {})
        return self._batches.dead(skip)

    def finish_dead(self, ids: Collection[str]) -> None:
        self._batches.finish_dead(ids)

    # -- inside ------------------------------------------------------------------------------------------------

    def _table_of(self, name: str) -> sa.Table:
        return messages_table(name, self._options.column_types, partitioned=self._options.partitions > 0)

    def _claim(self, wanted: ClaimRequest) -> Claimed:
        properties = self._live.current()
        self.access.require_consumer()
        self._bring_back_strays()
        pace = self._pace_of(properties.rate) if wanted.ids is None else None
        allowed, claimed = wanted.limit if pace is None else pace.take(wanted.limit), Claimed("")
        # What a batch has already is not new, and finding none of it would mean that the batch is complete.
        if allowed < 1 and not (wanted.batch_id is not None and self.knows_batch(wanted.batch_id)):
            return claimed
        order = replace(wanted, limit=max(1, allowed), properties=properties)
        try:
            claimed = self._database.write(lambda connection: self._claims.claim(connection, order))
        finally:
            if pace is not None:
                pace.give_back(allowed - (claimed.size - claimed.again))
        if properties.purge_after and time.monotonic() - self._purged > _PURGE_EVERY:
            self._purged = time.monotonic()
            self.purge()
        return claimed

    def _bring_back_strays(self) -> None:
        if not self._options.read_only:
            self._strays.bring_back(self._live.current())

    def _pace_of(self, rate: float) -> RateLimiter | None:
        """The pace of this consumer; another rate, which may be configured at any time, is another pace."""
        if not rate:
            return None
        if self._pace is None or self._pace.per_second != rate:
            self._pace = RateLimiter(rate, burst=1.0)
        return self._pace

    def _next_due(self, share: Collection[int] | None) -> int | None:
        """When this consumer can claim something of its share, or could; None when nothing waits."""
        self._bring_back_strays()
        due, pace = self.view.next_due(share, self._options.partitions), self._pace_of(self._live.current().rate)
        pause = 0.0 if pace is None else pace.pause()
        return due if due is None or not pause else max(due, self._database.now() + int(pause * NANOSECONDS))

    def _hand_out(self, claimed: Claimed) -> list[Message]:
        """Returns the claimed messages. Those that cannot be decoded are kept aside, and hold up no others."""
        claimed.read()
        for row, why in claimed.unreadable:
            dead = self._settlements.dead_letter(contract.UNREADABLE, why)
            self._settlements.apply([([KnownLease(id_of(row), claimed.token, row[0])], dead)])
        if len(self._in_flight) > _FORGET_FROM:
            self._in_flight.clear()
        self._in_flight.update(dict.fromkeys([message.id for message in claimed.messages], claimed.token))
        return claimed.messages

    def _held(self, message: str | Message) -> Leased:
        if isinstance(message, Message) and message.lock_token is not None:
            return message
        message_id = message if isinstance(message, str) else message.id
        found = self._in_flight.get(message_id) if isinstance(message, str) else None
        if found is None:
            raise NotInFlightError(
                f"message {message_id} was not retrieved from store {self.name!r} by this consumer, or is finished"
            )
        return KnownLease(message_id, found)

    def _settle(self, messages: Sequence[Leased], outcomes: Sequence[bool], transaction: Any) -> None:
        done, undone = list(compress(messages, outcomes)), list(compress(messages, map(not_, outcomes)))
        properties = self._live.current(transaction)
        changes = [(done, self._settlements.finish(properties)), (undone, self._settlements.release(properties))]
        if messages:
            self._settlements.apply([change for change in changes if change[0]], transaction)
        if transaction is None:
            self._forget(messages)

    def _forget(self, messages: Iterable[Leased]) -> None:
        for message in messages:
            self._in_flight.pop(message.id, None)

    def _check(self, properties: SqlProperties) -> None:
        if properties.acknowledged == ARCHIVED and not self._database.dialect.drops_partitions:
            raise ConfigurationError(
                "acknowledged=archived needs a table in partitions, which only PostgreSQL has here"
            )

    def _size_limit(self, properties: SqlProperties) -> SizeLimit:
        dialect = self._database.dialect
        return SizeLimit(
            properties.max_message_bytes, self._database.most_at_once, dialect.called, quoted=dialect.quotes
        )

    def _share(self, partitions: Collection[int] | None) -> Collection[int] | None:
        if partitions is None:
            return None
        self.require_partitions(partitions)
        return partitions
