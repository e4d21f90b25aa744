"""SqlStore: messages in one SQL table, leased by moving their `time_next` into the future."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cached_property, partial
from itertools import compress
from operator import not_
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import URL

from homing import store as contract
from homing.errors import (
    ConfigurationError,
    NotInFlightError,
    TooLargeError,
)
from homing.failure import FAILURE_STORE
from homing.invocation.fork_safety import start_over_after_fork
from homing.message import ACKNOWLEDGED, Message
from homing.pipeline_store import PipelineStore
from homing.row import NANOSECONDS
from homing.store import BatchLease
from homing.stores.bulk import BulkStore
from homing.stores.options import read_options, refuse_repeated
from homing.stores.sql.access import SqlAccess
from homing.stores.sql.archive import Archive
from homing.stores.sql.batches import Batches
from homing.stores.sql.claim_query import ClaimQuery, ClaimRequest
from homing.stores.sql.claim_result import Claimed
from homing.stores.sql.database import Database
from homing.stores.sql.engine import anchored
from homing.stores.sql.insert import Inserts
from homing.stores.sql.ledger import SqlLedger
from homing.stores.sql.notify import WakeUp
from homing.stores.sql.operations import SqlOperations
from homing.stores.sql.paced_claims import PacedClaims
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
from homing.stores.sql.schedule import Schedule
from homing.stores.sql.schema import messages_table, registry_table
from homing.stores.sql.settlements import KnownLease, Leased, Settlements
from homing.stores.sql.tables import identity_of
from homing.stores.validation import check_partitions, outcomes_of

_FORGET_FROM = 100_000  # leases remembered for acknowledging by id alone


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

    Its work is divided among objects that share the table: `Inserts`, `ClaimQuery`, `PacedClaims`,
    `Settlements`, `Schedule`, `SqlView`, `Batches`, `SqlAccess`, `SqlErasure`.
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
        self._live = LiveProperties(self._database, registry_table(), self._table.name, self._options.properties)
        self._inserts = Inserts(self._database, self._table, self._options, self._live)
        archive = Archive(self._database, self._table) if self._database.dialect.drops_partitions else None
        self._finder = finder = ClaimQuery(self._database, self._table, archive)
        self._settlements = Settlements(self._database, self._table, name, finder, archive)
        self._schedule = Schedule(self._database, self._table)
        self.view: SqlView = SqlView(self._database, self._table, finder, archive)
        self._batches = Batches(self._database, self._table, name, archive)
        self._claims = PacedClaims(
            self._database, self._table, self._options, self._live, finder=finder, view=self.view, batches=self._batches
        )
        self.erasure: SqlErasure = SqlErasure(self._database, self._table, name, archive)
        self.access: SqlAccess = SqlAccess(self._database, self._table, name, self._live, archive)
        self._wake_up = WakeUp(self._database, self._table.name)
        self._in_flight: dict[str, str] = {}
        start_over_after_fork(self)

    def start_over(self) -> None:
        """In a forked process. What was retrieved before may be settled there too, by its id as well: the lease is the
        database's, and of two who settle the second is refused."""
        self._wake_up.start_over()
        self._claims.start_over()

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
        return self._inserts.store_many(contents, transaction)

    @property
    def max_message_bytes(self) -> int:
        return self._live.current().max_message_bytes

    def refusal(self, message: Message) -> TooLargeError | None:
        return self._inserts.refusal(message)

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
            self._batches.renew(held_, self._database.now() + int(lease * NANOSECONDS))
            return
        messages = [held_] if isinstance(held_, Message) else held_
        self._settlements.apply([(messages, self._settlements.extend(lease))])

    def rest(self, message: Message, *, resting: bool) -> None:
        self._settlements.apply([([message], self._settlements.rest(resting))])

    # -- other ends a message can come to ----------------------------------------------------------------------

    def cancel(self, message_id: str) -> bool:
        return self._schedule.cancel(message_id)

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
        return self._schedule.reschedule(ids, at, delivery_count)

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
        self._claims.bring_back_strays()
        return self.view.has_due(share, self._options.partitions)

    @property
    def wakes(self) -> bool:
        return self._url.get_backend_name().startswith("postgres")

    def wait(
        self, timeout: float, *, ended: Callable[[], bool] = bool, partitions: Collection[int] | None = None
    ) -> bool:
        next_due = partial(self._claims.next_due, self._share(partitions))
        return self._wake_up.wait(timeout, next_due, listens=self.wakes, ended=ended)

    def wake(self) -> None:
        self._wake_up.wake()

    def due_in(self, *, partitions: Collection[int] | None = None) -> float | None:
        due = self._claims.next_due(self._share(partitions))
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
        return self._claims.expire()

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
        self._batches.forget(held, ids)

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
        self.access.require_consumer()
        return self._claims.claim(wanted)

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

    def _share(self, partitions: Collection[int] | None) -> Collection[int] | None:
        if partitions is None:
            return None
        self.require_partitions(partitions)
        return partitions
