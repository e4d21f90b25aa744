"""The messages of a memory store, in the order in which they are due. Not locked: the store does that."""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from threading import Condition

from homing import store as contract
from homing.failure import crash_text
from homing.invocation.fork_safety import start_over_after_fork
from homing.message import ACKNOWLEDGED, AVAILABLE, DEAD, LEASED, SCHEDULED, Encoded, Message


@dataclass(eq=False)
class StoredMessage:
    """One message and where it stands. Times are nanoseconds.

    `message` carries everything but the content, which is kept encoded, so that no caller can change it.
    `time_next` is when it is due, or when its lease ends. `stamp` counts the changes, so that what the heaps say
    about an earlier state is recognised as stale; `parked` says that it waits for its turn in its session, at `turn`.
    A lease that ran out leaves its `lock_token` behind.
    """

    message: Message
    encoded: Encoded
    sequence: int
    partition: int | None
    time_created: int
    time_scheduled: int
    time_next: int
    time_to_live: int | None
    state: str
    time_settled: int = 0
    lock_token: str | None = None
    batch_id: str | None = None
    deliveries: int = 0
    crashes: int = 0
    stamp: int = 0
    parked: bool = False
    turn: tuple[int, int] | None = None
    reason: str | None = None
    description: str | None = None
    source: str | None = None

    @property
    def session_id(self) -> str | None:
        return self.message.session_id


class MessageIndex:
    """The messages of one store name. `changed` is the lock, and is notified when something may have become due."""

    def __init__(self) -> None:
        self.start_over()
        start_over_after_fork(self)
        self.entries: dict[str, StoredMessage] = {}
        self._sequence = 0
        self._ready: list[tuple[int, int, int, int, StoredMessage]] = []
        self._waiting: list[tuple[int, int, int, StoredMessage]] = []
        self._expiring: list[tuple[int, int, int, StoredMessage]] = []
        self._sessions: dict[str, list[tuple[int, int, StoredMessage]]] = {}
        self._batches: dict[str, dict[str, StoredMessage]] = {}
        self._settled: list[tuple[int, int, int, StoredMessage]] = []

    def start_over(self) -> None:
        """Called in a forked process, which has a copy of all messages."""
        self.changed = Condition()

    def next_sequence(self) -> int:
        self._sequence += 1
        return self._sequence

    def add(self, entry: StoredMessage) -> None:
        self.entries[entry.message.id] = entry
        self.place(entry, entry.state)

    def remove(self, entry: StoredMessage) -> None:
        """Forgets a message, its id included."""
        entry.stamp += 1
        del self.entries[entry.message.id]
        self._leave_session(entry)
        self.leave_batch(entry)

    def place(self, entry: StoredMessage, state: str) -> None:
        """Puts an entry where its new state belongs; the caller has set its times."""
        entry.state, entry.parked = state, False
        entry.stamp += 1
        if state in (AVAILABLE, SCHEDULED, LEASED):
            self._join_session(entry)
        if state == AVAILABLE:
            self._make_ready(entry)
        elif state in (LEASED, SCHEDULED):
            heapq.heappush(self._waiting, (entry.time_next, entry.sequence, entry.stamp, entry))
        else:
            self._leave_session(entry)
            if state == ACKNOWLEDGED:
                heapq.heappush(self._settled, (entry.time_settled, entry.sequence, entry.stamp, entry))
        if state != LEASED:
            self._wake_session(entry)
            self.changed.notify_all()

    # -- time passes -------------------------------------------------------------------------------------------

    def advance(self, now: int, max_deliveries: int, name: str) -> None:
        """Makes due messages available, takes back leases that ran out, and dead-letters what expired or crashes."""
        for entry in self._pop_until(self._waiting, now):
            if entry.state == LEASED:
                entry.crashes += 1
                if entry.crashes >= max_deliveries:
                    self.dead_letter(entry, now, contract.CRASHED, crash_text(max_deliveries), name)
                    continue
            self.place(entry, AVAILABLE)
        for entry in self._pop_until(self._expiring, now):
            self.dead_letter(entry, now, contract.EXPIRED, "it was due for longer than its time to live", name)

    def dead_letter(self, entry: StoredMessage, now: int, reason: str, description: str | None, source: str) -> None:
        entry.reason, entry.description, entry.source = reason, description, source
        entry.time_settled, entry.lock_token = now, None
        self.place(entry, DEAD)

    def next_time(self, is_mine: Callable[[int | None], bool] | None = None) -> int | None:
        """When something becomes due next, in these partitions, as far as is known now."""
        if is_mine is not None:
            mine = (due for due, _, stamp, entry in self._waiting if stamp == entry.stamp and is_mine(entry.partition))
            return min(mine, default=None)
        while self._waiting and self._waiting[0][-1].stamp != self._waiting[0][-2]:
            heapq.heappop(self._waiting)
        return self._waiting[0][0] if self._waiting else None

    def forget_settled(self, before: int) -> int:
        """Removes what was acknowledged up to then; how many."""
        removed = 0
        for entry in self._pop_until(self._settled, before):
            self.remove(entry)
            removed += 1
        return removed

    @staticmethod
    def _pop_until(heap: list[tuple[int, int, int, StoredMessage]], limit: int) -> Iterator[StoredMessage]:
        while heap and heap[0][0] <= limit:
            *_, stamp, entry = heapq.heappop(heap)
            if entry.stamp == stamp:
                yield entry

    # -- the order of claiming ---------------------------------------------------------------------------------

    def has_ready(self, is_mine: Callable[[int | None], bool] | None = None) -> bool:
        """Whether an entry of these partitions can be claimed now."""
        if is_mine is not None:
            ready = (entry for *_, stamp, entry in self._ready if stamp == entry.stamp and not entry.parked)
            return any(is_mine(entry.partition) and self._may_go(entry) for entry in ready)
        while self._ready:
            *_, stamp, entry = self._ready[0]
            if entry.stamp == stamp and not entry.parked and self._may_go(entry):
                return True
            heapq.heappop(self._ready)
            entry.parked = entry.parked or entry.stamp == stamp
        return False

    def pop_ready(self, limit: int, is_mine: Callable[[int | None], bool] | None) -> list[StoredMessage]:
        """The next due entries of these partitions, in order, at most one of each session. The caller leases them."""
        found: list[StoredMessage] = []
        passed_by: list[tuple[int, int, int, int, StoredMessage]] = []
        while self._ready and len(found) < limit:
            item = heapq.heappop(self._ready)
            *_, stamp, entry = item
            if entry.stamp != stamp or entry.parked:
                continue
            if is_mine is not None and not is_mine(entry.partition):
                passed_by.append(item)
            elif self._may_go(entry):
                found.append(entry)
            else:
                entry.parked = True
        for item in passed_by:
            heapq.heappush(self._ready, item)
        return found

    def session_head(self, session_id: str, limit: int) -> list[StoredMessage]:
        """The first entries of a session, in order, up to one that is not due; none while one of them is leased."""
        found = []
        for *_, entry in self._sessions.get(session_id, [])[:limit]:
            if entry.state == LEASED:
                return []
            if entry.state != AVAILABLE:
                break
            found.append(entry)
        return found

    def _make_ready(self, entry: StoredMessage) -> None:
        heapq.heappush(self._ready, (entry.message.priority, entry.time_next, entry.sequence, entry.stamp, entry))
        if entry.time_to_live is not None:
            due = max(entry.time_scheduled, entry.time_created)
            heapq.heappush(self._expiring, (due + entry.time_to_live, entry.sequence, entry.stamp, entry))

    # -- sessions ----------------------------------------------------------------------------------------------

    def _may_go(self, entry: StoredMessage) -> bool:
        """Whether this is the first of its session; true without a session."""
        return entry.session_id is None or self._sessions[entry.session_id][0][-1] is entry

    def _join_session(self, entry: StoredMessage) -> None:
        if entry.session_id is None:
            return
        self._leave_session(entry)
        entry.turn = (entry.time_scheduled, entry.sequence)
        bisect.insort(self._sessions.setdefault(entry.session_id, []), (*entry.turn, entry))

    def _leave_session(self, entry: StoredMessage) -> None:
        if entry.session_id is None or entry.turn is None:
            return
        session = self._sessions[entry.session_id]
        del session[bisect.bisect_left(session, (*entry.turn,))]
        entry.turn = None
        if not session:
            del self._sessions[entry.session_id]

    def _wake_session(self, entry: StoredMessage) -> None:
        """The session may have another first message, one that has been waiting for its turn."""
        if entry.session_id in self._sessions:
            first = self._sessions[entry.session_id][0][-1]
            if first.parked:
                first.parked = False
                first.stamp += 1
                self._make_ready(first)

    # -- batches -----------------------------------------------------------------------------------------------

    def join_batch(self, entry: StoredMessage, batch_id: str | None) -> None:
        """Puts it into this batch, or into none, and takes it out of its old one."""
        if entry.batch_id == batch_id:
            return
        self.leave_batch(entry)
        entry.batch_id = batch_id
        if batch_id is not None:
            self._batches.setdefault(batch_id, {})[entry.message.id] = entry

    def leave_batch(self, entry: StoredMessage) -> None:
        if entry.batch_id is None:
            return
        batch = self._batches.get(entry.batch_id, {})
        batch.pop(entry.message.id, None)
        if not batch:
            self._batches.pop(entry.batch_id, None)
        entry.batch_id = None

    def batch(self, batch_id: str) -> list[StoredMessage] | None:
        """What is left to settle of a batch; None when that id was never used."""
        batch = self._batches.get(batch_id)
        if batch is None:
            return None
        return [entry for entry in batch.values() if entry.state in (LEASED, AVAILABLE)]
