"""MemoryStore: a whole store in the memory of one process, for tests, demos and queues that may die with it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from threading import Lock
from typing import Any

from homing import message as m
from homing import store as contract
from homing.errors import (
    LeaseLostError,
    NotInFlightError,
    UnreadableMessageError,
)
from homing.ids import new_id
from homing.message import ACKNOWLEDGED, AVAILABLE, DEAD, DEFERRED, LEASED, SCHEDULED, STATES, Message
from homing.retry import doubled
from homing.row import NANOSECONDS, from_nanoseconds, span, to_nanoseconds
from homing.size_limit import SizeLimit
from homing.store import BatchLease
from homing.stores.bulk import BulkStore
from homing.stores.memory.index import MessageIndex, StoredMessage
from homing.stores.memory.options import MemoryOptions, parse_url
from homing.stores.validation import (
    as_message,
    check_claim,
    check_partitions,
    check_purged,
    outcomes_of,
    partition_of,
    written_texts,
)

_INDEXES: dict[str, MessageIndex] = {}
_INDEXES_LOCK = Lock()


def open_memory_store(url: str) -> MemoryStore:
    """Opens `memory://name?ack_wait=30&max_deliveries=5`; raises ConfigurationError for a bad option.

    Every store opened under one name in one process is the same store.
    """
    return MemoryStore(*parse_url(url))


class MemoryStore(BulkStore):
    """Messages in memory: thread-safe, leased, fenced; gone when the process ends, shared within it by `name`.

    Acknowledged messages are remembered for a while: that is what duplicates are known by. `clock` gives nanoseconds
    since 1970.
    """

    features = contract.STORE_KINDS["memory"].features

    def __init__(
        self, name: str, options: MemoryOptions | None = None, *, clock: Callable[[], int] = time.time_ns
    ) -> None:
        self.name = name
        self._options = options or MemoryOptions()
        self._clock = clock
        self._in_flight: dict[str, str] = {}
        with _INDEXES_LOCK:
            self._index = _INDEXES.setdefault(name, MessageIndex())

    # -- the three verbs ---------------------------------------------------------------------------------------

    def retrieve(self) -> Message | None:
        claimed = self.claim(1)
        return claimed[0] if claimed else None

    def acknowledge(self, message: str | Message, success: bool = True, *, transaction: Any = None) -> None:
        self._refuse_transaction(transaction)
        with self._now() as now:
            self._settle_one(self._held(*self._claimed_as(message)), success, now)

    def close(self) -> None:
        """Does nothing: what this process holds stays for the others who opened the same name."""

    @property
    def max_message_bytes(self) -> int:
        return self._options.max_message_bytes

    # -- many at a time ----------------------------------------------------------------------------------------

    def store_many(self, contents: Iterable[Any], *, transaction: Any = None) -> list[str]:
        self._refuse_transaction(transaction)
        messages = [as_message(item) for item in contents]
        ready = [(message, m.encode(message.content), _copied_headers(message)) for message in messages]
        limit = SizeLimit(self._options.max_message_bytes)
        for message, encoded, _ in ready:
            limit.check(self.name, message.id, message.content, written_texts(message, encoded.body))
        with self._now() as now:
            if self._options.purge_after:
                self._index.forget_settled(now - _span(self._options.kept_for))
            for message, encoded, headers in ready:
                if not self._knows(message.id, now):
                    self._index.add(self._new_entry(replace(message, content=None, headers=headers), encoded, now))
        return [message.id for message in messages]

    def claim(
        self,
        limit: int,
        *,
        batch_id: str | None = None,
        lease: float | None = None,
        session_id: str | None = None,
        partitions: Collection[int] | None = None,
    ) -> list[Message]:
        check_claim(limit, lease)
        share = self._share(partitions)
        with self._now() as now:
            entries = None if batch_id is None else self._index.batch(batch_id)
            if entries is not None:
                return self._lease_again(entries, batch_id, lease, now)
            claimed: list[Message] = []
            while not claimed:  # what cannot be read is kept aside, and the next asked for
                if session_id is not None:
                    entries = self._index.session_head(session_id, limit)
                else:
                    entries = self._index.pop_ready(limit, share)
                if not entries:
                    return []
                claimed = self._lease(entries, batch_id, new_id(), lease, now)
            return claimed

    def settle(
        self, messages: Sequence[Message], success: bool | Sequence[bool] = True, *, transaction: Any = None
    ) -> None:
        self._refuse_transaction(transaction)
        outcomes = outcomes_of(messages, success)
        with self._now() as now:
            held = [self._held(*self._claimed_as(message)) for message in messages]
            if len(set(map(id, held))) < len(held):
                raise NotInFlightError(f"a message can be settled once only, not twice in {len(held)}")
            for entry, outcome in zip(held, outcomes, strict=True):
                self._settle_one(entry, outcome, now)

    def renew(self, held: BatchLease | Message | Sequence[Message], lease: float) -> None:
        check_claim(1, lease)
        with self._now() as now:
            if isinstance(held, BatchLease):
                batch = self._index.batch(held.batch_id) or []
                entries = [entry for entry in batch if entry.lock_token == held.lock_token]
                if not entries:
                    raise LeaseLostError(f"the lease on batch {held.batch_id} in store {self.name!r} is lost")
            else:
                messages = [held] if isinstance(held, Message) else held
                entries = [self._held(message.id, message.lock_token) for message in messages]
            for entry in entries:
                entry.time_next = now + _span(lease)
                self._index.place(entry, LEASED)

    def rest(self, message: Message, *, resting: bool) -> None:
        with self._now():
            self._held(message.id, message.lock_token).crashes += -1 if resting else 1

    def finish_dead(self, ids: Collection[str]) -> None:
        with self._now() as now:
            for entry in [self._index.entries[one] for one in ids if one in self._index.entries]:
                if entry.state == DEAD:
                    entry.time_settled = now
                    self._index.place(entry, ACKNOWLEDGED)

    # -- other ends a message can come to ----------------------------------------------------------------------

    def cancel(self, message_id: str) -> bool:
        with self._now():
            entry = self._index.entries.get(message_id)
            if entry is None or entry.state != SCHEDULED or entry.deliveries:
                return False
            self._index.remove(entry)
            return True

    def defer(self, message: str | Message) -> None:
        with self._now():
            entry = self._held(*self._claimed_as(message))
            self._index.leave_batch(entry)
            entry.lock_token = None
            self._index.place(entry, DEFERRED)
            self._in_flight.pop(entry.message.id, None)

    def receive_deferred(self, ids: Collection[str], *, lease: float | None = None) -> list[Message]:
        check_claim(1, lease)
        with self._now() as now:
            found = [self._index.entries[each] for each in ids if each in self._index.entries]
            deferred = [entry for entry in found if entry.state == DEFERRED]
            return self._lease(deferred, None, new_id(), lease, now)

    def dead_letter(self, message: str | Message, *, reason: str, description: str | None = None) -> None:
        with self._now() as now:
            entry = self._held(*self._claimed_as(message))
            self._index.dead_letter(entry, now, reason, description, self.name)
            self._in_flight.pop(entry.message.id, None)

    def reschedule(self, ids: Collection[str], at: datetime, *, delivery_count: int | None = None) -> int:
        due = to_nanoseconds(at)
        with self._now() as now:
            found = [self._index.entries[each] for each in ids if each in self._index.entries]
            changed = [entry for entry in found if entry.state in (AVAILABLE, SCHEDULED)]
            for entry in changed:
                entry.time_scheduled = entry.time_next = due
                entry.lock_token = None
                self._index.leave_batch(entry)
                entry.deliveries = entry.deliveries if delivery_count is None else delivery_count
                self._index.place(entry, SCHEDULED if due > now else AVAILABLE)
            return len(changed)

    # -- looking, without claiming -----------------------------------------------------------------------------

    def browse(
        self, limit: int = 100, *, state: str | None = None, after: int = 0, ids: Collection[str] | None = None
    ) -> list[Message]:
        wanted = None if ids is None else set(ids)
        with self._now():
            found: list[Message] = []
            for entry in self._index.entries.values():
                if len(found) >= limit:
                    break
                known = entry.sequence > after and (wanted is None or entry.message.id in wanted)
                if known and state in (None, entry.state):
                    found.append(self._message(entry, raw=True))
            return found

    def count(self) -> dict[str, int]:
        counted = dict.fromkeys(STATES, 0)
        with self._now():
            for entry in self._index.entries.values():
                counted[entry.state] += 1
        return counted

    def require_partitions(self, partitions: Collection[int]) -> None:
        check_partitions(partitions, self._options.partitions, self.name)

    def has_due(self, *, partitions: Collection[int] | None = None) -> bool:
        with self._now():
            return self._index.has_ready(self._share(partitions))

    def oldest_age(self) -> float | None:
        with self._now() as now:
            due = [entry.time_next for entry in self._index.entries.values() if entry.state == AVAILABLE]
        return (now - min(due)) / NANOSECONDS if due else None

    @property
    def wakes(self) -> bool:
        return True

    def wait(
        self, timeout: float, *, ended: Callable[[], bool] = bool, partitions: Collection[int] | None = None
    ) -> bool:
        deadline, share = time.monotonic() + timeout, self._share(partitions)
        while True:
            with self._now() as now:
                if ended():
                    return False
                if self._index.has_ready(share):
                    return True
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                due = self._index.next_time(share)
                soon = left if due is None else min(left, max((due - now) / NANOSECONDS, 0.001))
                self._index.changed.wait(soon)

    def wake(self) -> None:
        with self._index.changed:
            self._index.changed.notify_all()

    def due_in(self, *, partitions: Collection[int] | None = None) -> float | None:
        share = self._share(partitions)
        with self._now() as now:
            due = now if self._index.has_ready(share) else self._index.next_time(share)
            return None if due is None else max(0.0, (due - now) / NANOSECONDS)

    def purge(self, older_than: float | None = None, *, state: str = ACKNOWLEDGED) -> int:
        check_purged(state)
        with self._now() as now:
            before = now - _span(self._options.kept_for if older_than is None else older_than)
            if state == ACKNOWLEDGED:
                return self._index.forget_settled(before)
            entries = self._index.entries.values()
            old = [entry for entry in entries if entry.state == DEAD and entry.time_settled <= before]
            for entry in old:
                self._index.remove(entry)
            return len(old)

    # -- under the lock ----------------------------------------------------------------------------------------

    @contextmanager
    def _now(self) -> Iterator[int]:
        """Holds the lock; whatever was due by the time it gives has happened."""
        with self._index.changed:
            now = self._clock()
            self._index.advance(now, self._options.max_deliveries, self.name)
            yield now

    def _new_entry(self, message: Message, encoded: m.Encoded, now: int) -> StoredMessage:
        due = now if message.scheduled_at is None else to_nanoseconds(message.scheduled_at)
        return StoredMessage(
            message,
            encoded,
            self._index.next_sequence(),
            partition_of(message, parts) if (parts := self._options.partitions) else None,
            time_created=now,
            time_scheduled=due,
            time_next=due,
            time_to_live=None if message.time_to_live is None else span(message.time_to_live),
            state=SCHEDULED if due > now else AVAILABLE,
            reason=message.dead_letter_reason,
            description=message.dead_letter_description,
            source=message.dead_letter_source,
        )

    def _knows(self, message_id: str, now: int) -> bool:
        """Whether a message of this id is here; one finished and stored before the window is forgotten."""
        entry, window = self._index.entries.get(message_id), self._options.duplicate_window
        if entry is None or not window or entry.state != ACKNOWLEDGED or entry.time_created >= now - _span(window):
            return entry is not None
        self._index.remove(entry)
        return False

    def _share(self, partitions: Collection[int] | None) -> Callable[[int | None], bool] | None:
        if partitions is None:
            return None
        self.require_partitions(partitions)
        known = self._options.partitions
        # Messages stored when there were more partitions, or none, belong to the first consumer that asks.
        return lambda number: number is None or number in partitions or number >= known

    def _lease(
        self, entries: Sequence[StoredMessage], batch_id: str | None, token: str, lease: float | None, now: int
    ) -> list[Message]:
        claimed = []
        for entry in entries:
            entry.deliveries += entry.lock_token != token
            seconds = self._doubled(self._options.ack_wait, entry.deliveries) if lease is None else lease
            entry.time_next = now + _span(seconds)
            entry.lock_token = token
            self._index.join_batch(entry, batch_id)
            self._index.place(entry, LEASED)
            try:
                claimed.append(self._message(entry))
            except UnreadableMessageError as error:
                self._index.dead_letter(entry, now, contract.UNREADABLE, str(error), self.name)
        self._in_flight.update((message.id, token) for message in claimed)
        return claimed

    def _lease_again(
        self, entries: list[StoredMessage], batch_id: str | None, lease: float | None, now: int
    ) -> list[Message]:
        """What is left of a batch, under the lease it has, or a new one where that ran out."""
        live = {entry.lock_token for entry in entries if entry.state == LEASED}
        token = live.pop() if len(live) == 1 else None
        return self._lease(entries, batch_id, token or new_id(), lease, now)

    def _doubled(self, seconds: float, deliveries: int) -> float:
        return doubled(seconds, deliveries, most=self._options.max_ack_wait, jitter=self._options.jitter)

    def _claimed_as(self, message: str | Message) -> tuple[str, str | None]:
        if isinstance(message, Message):
            return message.id, message.lock_token
        return message, self._in_flight.get(message)

    def _held(self, message_id: str, token: str | None) -> StoredMessage:
        """The entry, when it is held under this token."""
        entry = self._index.entries.get(message_id)
        if token is None:
            raise NotInFlightError(
                f"message {message_id} was not retrieved from store {self.name!r} by this consumer, or is finished"
            )
        if entry is None or entry.lock_token is None:
            raise NotInFlightError(f"message {message_id} in store {self.name!r} is unknown or already finished")
        if entry.lock_token != token or entry.state != LEASED:
            raise LeaseLostError(
                f"the lease on message {message_id} in store {self.name!r} ran out or passed to another consumer"
            )
        return entry

    def _settle_one(self, entry: StoredMessage, success: bool, now: int) -> None:
        entry.lock_token = None
        if success:
            entry.time_settled = now
            self._index.place(entry, ACKNOWLEDGED)
        else:
            backoff = self._options.backoff
            entry.time_next = now + _span(self._doubled(backoff, entry.deliveries) if backoff else 0)
            self._index.leave_batch(entry)
            self._index.place(entry, SCHEDULED if entry.time_next > now else AVAILABLE)
        self._in_flight.pop(entry.message.id, None)

    def _message(self, entry: StoredMessage, raw: bool = False) -> Message:
        scheduled = entry.time_scheduled if entry.time_scheduled > entry.time_created else None
        return replace(
            entry.message,
            content=_content(entry, raw),
            headers=_copied_headers(entry.message),
            sequence_number=entry.sequence,
            lock_token=entry.lock_token if entry.state == LEASED else None,
            delivery_count=entry.deliveries,
            enqueued_at=from_nanoseconds(entry.time_created),
            scheduled_at=None if scheduled is None else from_nanoseconds(scheduled),
            dead_letter_reason=entry.reason,
            dead_letter_description=entry.description,
            dead_letter_source=entry.source,
            state=entry.state,
        )


def _content(entry: StoredMessage, raw: bool) -> Any:
    try:
        return m.decode(entry.encoded.encoding, entry.encoded.body, entry.message.id)
    except UnreadableMessageError:
        if raw:
            return entry.encoded.body
        raise


def _copied_headers(message: Message) -> dict[str, Any]:
    return m.decode_headers(m.encode_headers(message.headers), message.id)


def _span(seconds: float) -> int:
    return int(seconds * NANOSECONDS)
