"""One run's batch: claiming it, keeping it, settling it. Every method may be called twice."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any, NamedTuple, TypeVar

from homing.delivery import records, suspects
from homing.delivery.stores import PipelineStores
from homing.errors import HomingError, StoreError, StoreUnavailableError
from homing.ledger import DELIVERED, DONE_STATES, DROPPED, FAILED, PROCESSED, SOURCE_FLOW, Entry, Fence
from homing.message import ACKNOWLEDGED, Message
from homing.store import BatchLease
from homing.stores.sql import SqlStore
from homing.stores.sql.scans import Condition

log = logging.getLogger(__name__)

#: How long a batch is held without a sign of life. Long enough for a scheduler that is slow to start the next task.
DEFAULT_LEASE = 600.0
#: What has waited in the failure store for this long has lost the replay that was meant for it.
STRANDED_AFTER = 300.0

_HEAD = ("sequence", "id", "batch_id", "content_type", "crashes")
_HEADS = 10_000
# A source flow that went well delivers nothing by itself.
_COMPLETE = DONE_STATES - {PROCESSED}

Row = dict[str, Any]
Result = TypeVar("Result")


@dataclass(frozen=True)
class Held:
    """The part of a batch that one store holds for it."""

    store: SqlStore
    lease: BatchLease


class Head(NamedTuple):
    """A message of a batch without its content: its row's id, and what the ledger knows it by.

    `wrapped` says that the row is the record of a failure of that message; `crashes`, of how many that held it before
    it is known that they died.
    """

    row_id: str
    message_id: str
    life: int
    batch_id: str
    wrapped: bool
    crashes: int = 0


@dataclass(frozen=True)
class Settlement:
    """What settling did with the messages of a batch: each is counted once.

    `acknowledged` are those that are complete; `dropped` are those of them that reached no destination.
    """

    acknowledged: int = 0
    failed: int = 0
    dead_lettered: int = 0
    released: int = 0
    dropped: int = 0

    @property
    def delivered(self) -> int:
        return self.acknowledged - self.dropped

    def __str__(self) -> str:
        return (
            f"{self.delivered} delivered, {self.dropped} dropped by rule, {self.failed} failed and to be replayed, "
            f"{self.dead_lettered} dead-lettered, {self.released} released"
        )


@dataclass(frozen=True)
class Sorted:
    """A part of a batch by what the ledger says of its messages; entries by the id of the row."""

    complete: list[Row]
    failed: list[Row]
    untouched: list[Row]
    entries: dict[str, dict[str, Entry]]


class Batch:
    """The messages claimed under one run id.

    A first pass claims new messages from the store. A replay, or a pass that was cleared, claims by id what has failed:
    from the failure store, and from the dead-letter store. A dead-letter store that is away holds up only its own.
    """

    def __init__(self, stores: PipelineStores, run_id: str, flows: Sequence[str], *, chain: str = "") -> None:
        self.run_id = run_id
        self._stores = stores
        self._flows = tuple(flows)
        self._chain = chain

    @property
    def store_name(self) -> str:
        return self._stores.store.name

    # -- claiming ----------------------------------------------------------------------------------------------

    def is_known(self) -> bool:
        """Whether this run has messages of its own: then it never claims new ones."""
        return self._stores.store.knows_batch(self.run_id)

    def unfinished(self, batch_id: str) -> list[str]:
        """The ids of the messages that failed in a batch and were not delivered since."""
        return self._stores.ledger.unfinished(batch_id)

    def unknown(self, ids: Collection[str], batch_id: str | None) -> list[str]:
        """Those of these messages, and that batch, of which nothing is known here."""
        known = self._stores.ledger.entries(ids)
        missing = [f"message {message_id}" for message_id in ids if message_id not in known]
        if batch_id and not self._stores.store.knows_batch(batch_id) and not self.unfinished(batch_id):
            missing.append(f"batch {batch_id}")
        return missing

    def stranded(self) -> list[str]:
        """Messages in the failure store whose own replay never came, or could not run."""
        return self._stores.failures.overdue(STRANDED_AFTER)

    def claim(self, limit: int, lease: float = DEFAULT_LEASE) -> int:
        """Claims new messages, or finds the batch this run claimed before, with what of it failed since; how many."""
        if self.is_known():
            return self.reclaim(self.unfinished(self.run_id), lease)
        held = self._stores.store.lease_batch(limit, batch_id=self.run_id, lease=lease)
        self._try_move_dead()
        return held.size if held else 0

    def reclaim(self, ids: Collection[str] = (), lease: float = DEFAULT_LEASE) -> int:
        """Claims these messages wherever they wait after their failure, and keeps what the run holds already.

        Of an id that came again only one message is held at a time, the last; the one before it waits for a replay of
        its own.
        """
        left = set(ids)

        def again(store: SqlStore) -> None:
            wanted = () if store is self._stores.store else [self._id_in(store, message_id) for message_id in left]
            store.lease_batch(1, batch_id=self.run_id, lease=lease, ids=wanted)
            held = store.held_batch(self.run_id)
            if held is not None and store is not self._stores.dead_letters:
                left.difference_update(self._finish_moves(Held(store, held)))

        self._each(again)
        return sum(held.lease.size for held in self.held())

    def held(self) -> list[Held]:
        """What the run holds now, store by store."""
        found = self._each(lambda store: (store, store.held_batch(self.run_id)))
        return [Held(store, lease) for store, lease in found if lease is not None]

    def heads(self) -> list[Head]:
        """The messages the run holds now, without their contents."""
        return [head for held in self.held() for head in self.heads_of(held)]

    def heads_of(self, held: Held) -> list[Head]:
        """The messages of one part of the batch, without their contents."""
        if held.store is self._stores.store:
            rows = list(held.store.batch_values(held.lease, _HEAD, page=_HEADS))
            if not any(kind == records.FAILURE_TYPE for *_, kind, _ in rows):
                return [
                    Head(row_id, row_id, number, batch_id or "", False, _crashes(crashes))
                    for number, row_id, batch_id, _, crashes in rows
                ]
        return [_head(row) for row in held.store.batch_rows(held.lease)]

    def is_new(self, part: Held) -> bool:
        """Whether all messages of this part have come to the run as they were stored: held by nobody before, and
        failed for nobody."""
        mine = part.store is self._stores.store and part.store.is_new_batch(part.lease)
        return mine and not self.unfinished(self.run_id)

    def outstanding(self, flows: Sequence[str]) -> bool:
        """Whether one of the messages the run holds is not done with in one of these flows."""
        heads = self.heads()
        for start in range(0, len(heads), _HEADS):
            some = heads[start : start + _HEADS]
            known = self._stores.ledger.known([head.message_id for head in some])
            if not all(is_complete(known.get((head.message_id, head.life), {}), flows) for head in some):
                return True
        return False

    def crashed_before(self) -> bool:
        """Whether somebody died who held one of these messages: then they are better taken one at a time."""
        for held in self.held():
            lease = held.lease
            mine = [Condition("batch_id", "=", lease.batch_id), Condition("lock_token", "=", lease.lock_token)]
            if held.store.scans().span(conditions=[*mine, Condition("crashes", ">", 0)]) is not None:
                return True
            if held.store is not self._stores.store and self._known_to_kill(held):
                return True
        return False

    def _known_to_kill(self, held: Held) -> bool:
        known = self._stores.ledger.known([head.message_id for head in self.heads_of(held)])
        errors = [entry.error for flows in known.values() for entry in flows.values() if not entry.done]
        return any(error is not None and error["type"] == suspects.CRASH for error in errors)

    # -- settling ----------------------------------------------------------------------------------------------

    def settle(self) -> Settlement:
        """The end of a first pass: complete messages are acknowledged, failed ones wait in the failure store for
        their replay, and those that nobody got to are released.

        Of a step that did not come to its end, the message that was in hand has failed. Where it is not known which it
        was, a crash is counted for each that may be the one; with the store's `max_deliveries` it has failed, too.
        """
        return self._settle(failed_to=self._stores.failures)

    def finish_replay(self) -> Settlement:
        """The end of a replay whose retries are used up: what failed in it goes to the dead-letter store. What was
        merely there when the replay could not run is released, to be replayed later. Crashes count as in `settle`."""
        self._try_move_dead()
        return self.dead_letter_failed()

    def dead_letter_failed(self) -> Settlement:
        """Brings what failed in this run to the dead-letter store, and releases the rest."""
        return self._settle(failed_to=self._stores.dead_letters)

    def reject(self, ids: Collection[str]) -> Settlement:
        """Brings these failures to the dead-letter store as they are: somebody said that they are not to be replayed.
        A replay that names them takes them up from there."""
        self.reclaim(ids)
        return self._settle(failed_to=self._stores.dead_letters, tried=False)

    def put_off(self, ids: Collection[str], seconds: float) -> None:
        """Makes these failures wait for so long before they count as stranded. A replay that names them has them at
        once."""
        self._stores.failures.reschedule(ids, datetime.now(timezone.utc) + timedelta(seconds=seconds))

    def is_open(self, step: str) -> bool:
        """Whether somebody works at this step of the run, or died at it lately: its lease has not run out."""
        return self._stores.ledger.is_open(self.run_id, step)

    def acknowledge_complete(self) -> int:
        """Acknowledges what is complete and keeps the rest; how many messages are still to be delivered."""
        left = 0
        for held in self.held():
            found = self._sort(held)
            self._finish(held, found.complete)
            left += len(found.failed) + len(found.untouched)
        return left

    def completed(self, heads: Collection[Head]) -> Settlement:
        """How many of these messages, held before, are complete by now, and how many of those were dropped."""
        known = self._stores.ledger.known([head.message_id for head in heads])
        stories = [known.get((head.message_id, head.life), {}) for head in heads]
        complete = [entries for entries in stories if is_complete(entries, self._flows)]
        return Settlement(len(complete), dropped=sum(not was_delivered(entries) for entries in complete))

    def awaiting_replay(self) -> int:
        """How many messages of this batch wait in the failure store. Asked of the stores, so that a settlement that
        died half-way and is done again still knows."""
        return len(self._stores.failures.present(self.unfinished(self.run_id)))

    def move_dead(self) -> int:
        """Brings what a store kept aside as dead to the dead-letter store, where people look; how many."""
        moved = 0
        for store in (self._stores.store, self._stores.failures):
            found = self._sorted(store.dead_messages())
            letters = {
                row["id"]: self._dead_letter(row, found.entries[row["id"]]) for row in (*found.failed, *found.untouched)
            }
            letters = self._with_room(letters, self._stores.dead_letters)
            if letters:
                self._record_as_failed(found)
                self._copy(list(letters.values()), self._stores.dead_letters)
                log.warning("dead-lettered %d messages that crashed their consumers or are unreadable", len(letters))
            store.finish_dead([*letters, *(row["id"] for row in found.complete)])
            moved += len(letters)
        return moved

    def _try_move_dead(self) -> None:
        """Those that are dead can wait; a run that has work to do, or has done it, is not to wait for them."""
        try:
            self.move_dead()
        except HomingError as error:
            log.warning("what is dead in store %s stays there for now: %s", self.store_name, error)

    def _settle(self, failed_to: SqlStore, *, tried: bool = True) -> Settlement:
        total = Settlement()
        crashed = self._take_over()
        for held in self._held_again():
            found = self._count_crashes(held, self._sort(held), crashed)
            self._finish(held, found.complete)
            gone = self._move(held, self._moving(held, found, failed_to, tried), found, failed_to)
            kept = [row["id"] for row in (*found.untouched, *found.failed) if row["id"] not in gone]
            held.store.settle_batch(held.lease, kept, success=False)
            dead = failed_to is self._stores.dead_letters
            total = Settlement(
                total.acknowledged + len(found.complete),
                total.failed + (0 if dead else len(gone)),
                total.dead_lettered + (len(gone) if dead else 0),
                total.released + len(kept),
                total.dropped + sum(not was_delivered(found.entries[row["id"]]) for row in found.complete),
            )
        self._stores.ledger.close_steps(self.run_id)
        return total

    def _take_over(self) -> list[Fence]:
        """Ends the right to record of every step that did not come to its end, and records as failed the one message
        that was in hand. The steps of which it is not known."""
        ledger = self._stores.ledger
        fences = [ledger.open_step(self.run_id, step, DEFAULT_LEASE) for step in ledger.left_open(self.run_id)]
        return [fence for fence in fences if suspects.blame(ledger, fence) is None]

    def _count_crashes(self, held: Held, found: Sorted, crashed: Sequence[Fence]) -> Sorted:
        """Counts a crash for each message that one of these steps may have died of. Those for which it is one too many
        have failed: alone in its replay, each shows whether it was the one."""
        if not crashed:
            return found
        spans = [suspects.span_of(fence) for fence in crashed]
        open_rows = [
            *found.untouched,
            *(row for row in found.failed if not self._failed_here(found.entries[row["id"]])),
        ]
        died = [row for row in open_rows if any(span is None or span.covers(row["id"]) for span in spans)]
        held.store.count_crash(held.lease, [row["id"] for row in died])
        most = held.store.properties.max_deliveries
        error = suspects.crash(f"{most} who had this message in hand have died", crashed[0].step)
        worst = [row for row in died if _crashes(row["crashes"]) + 1 >= most]
        entries = [records.subject(row).entry(SOURCE_FLOW, FAILED, error) for row in worst]
        self._stores.ledger.record(crashed[0], entries)
        return self._sort(held) if worst else found

    def _moving(self, held: Held, found: Sorted, failed_to: SqlStore, tried: bool) -> list[Row]:
        """The failed messages to be moved on. What already waits in the failure store, or is dead, stays there until
        a replay has failed for it, if one was tried."""
        if failed_to is self._stores.failures:
            return found.failed if held.store is self._stores.store else []
        if held.store is failed_to:
            return []
        return [row for row in found.failed if not tried or self._failed_here(found.entries[row["id"]])]

    def _failed_here(self, entries: dict[str, Entry]) -> bool:
        return any(entry.state == FAILED and entry.run_id == self.run_id for entry in entries.values())

    def _move(self, held: Held, moving: list[Row], found: Sorted, to: SqlStore) -> set[str]:
        """The ids of those of these messages that are in the other store now."""
        make = self._dead_letter if to is self._stores.dead_letters else self._failure
        copies = self._with_room({row["id"]: make(row, found.entries[row["id"]]) for row in moving}, to)
        if copies:
            self._copy(list(copies.values()), to)
            self._finish(held, [row for row in moving if row["id"] in copies])
            log.info("%d messages went from store %s to %s", len(copies), held.store.name, to.name)
        return set(copies)

    def _with_room(self, copies: dict[str, Message], to: SqlStore) -> dict[str, Message]:
        """Those of these copies whose ids no other message has there: an id may come again while the failure of its
        first message waits. The second message then waits where it is."""
        there = _lives(to, [copy.id for copy in copies.values()])
        room = {
            one: copy
            for one, copy in copies.items()
            if there.get(copy.id, records.life_in(copy)) == records.life_in(copy)
        }
        if len(room) < len(copies):
            stays = min(copies.keys() - room.keys())
            log.warning("message %s stays: an earlier message of that id is in store %s still", stays, to.name)
        return room

    def _copy(self, copies: list[Message], to: SqlStore) -> None:
        """Stores the copies and makes sure they are there: an id that the store knew already would not be stored."""
        to.store_many(copies)
        there = _lives(to, [copy.id for copy in copies])
        missing = {copy.id for copy in copies if copy.id not in there or there[copy.id] != records.life_in(copy)}
        if missing:
            raise StoreError(
                f"store {to.name!r} did not keep a copy of message {min(missing)}: it had finished one of that id "
                f"before. Nothing was acknowledged; remove that one from {to.name!r}"
            )

    def _finish(self, held: Held, rows: Collection[Row]) -> None:
        """Acknowledges messages. Of a failure record nothing need be kept: the ledger knows the message's story."""
        ids = [row["id"] for row in rows]
        if held.store is self._stores.store:
            held.store.settle_batch(held.lease, ids)
        else:
            held.store.forget_batch(held.lease, ids)

    def _finish_moves(self, held: Held) -> set[str]:
        """Acknowledges what a settlement that died had copied already: the copy is the message now. The other ids."""
        to = self._stores.failures if held.store is self._stores.store else self._stores.dead_letters
        rows = list(held.store.batch_rows(held.lease))
        copies = {row["id"]: self._id_in(to, row["id"]) for row in rows}
        there = next(iter(self._ask(to, lambda store: _lives(store, copies.values()))), {})
        moved = [row for row in rows if there.get(copies[row["id"]], -1) == records.subject(row).life]
        self._finish(held, moved)
        return copies.keys() - {row["id"] for row in moved}

    def _id_in(self, store: SqlStore, message_id: str) -> str:
        """What a message is called in this store."""
        return records.dead_letter_id(self.store_name, message_id) if store is self._stores.dead_letters else message_id

    def _held_again(self) -> Iterator[Held]:
        """What the run holds, and what it held until its lease ran out, unless somebody else has it by now."""

        def again(store: SqlStore) -> tuple[SqlStore, BatchLease | None]:
            known = store.knows_batch(self.run_id)
            return store, store.lease_batch(1, batch_id=self.run_id, lease=DEFAULT_LEASE, ids=()) if known else None

        for store, lease in self._each(again):
            if lease is not None:
                yield Held(store, lease)

    def _each(self, ask: Callable[[SqlStore], Result]) -> list[Result]:
        """Asks the three stores, in the direction messages travel."""
        stores = self._stores
        asked = (stores.store, stores.failures, stores.dead_letters)
        return [answer for store in asked for answer in self._ask(store, ask)]

    def _ask(self, store: SqlStore, ask: Callable[[SqlStore], Result]) -> list[Result]:
        """The store's answer; none from a dead-letter store that is away, because nothing new depends on it."""
        try:
            return [ask(store)]
        except StoreUnavailableError as error:
            if store is not self._stores.dead_letters:
                raise
            log.warning("going on without the dead-letter store: %s", error)
            return []

    def _sort(self, held: Held) -> Sorted:
        return self._sorted(list(held.store.batch_rows(held.lease)))

    def _sorted(self, rows: list[Row]) -> Sorted:
        subjects = {row["id"]: records.subject(row) for row in rows}
        known = self._stores.ledger.known(about.message_id for about in subjects.values())
        result = Sorted([], [], [], {})
        for row in rows:
            about = subjects[row["id"]]
            entries = result.entries[row["id"]] = known.get((about.message_id, about.life), {})
            if is_complete(entries, self._flows):
                result.complete.append(row)
            elif any(not entry.done for entry in entries.values()):
                result.failed.append(row)
            else:
                result.untouched.append(row)
        return result

    def _record_as_failed(self, found: Sorted) -> None:
        """Notes what a store gave up, so that replaying the batch finds it."""
        fence = self._stores.ledger.open_step(self.run_id, "store", DEFAULT_LEASE)
        self._stores.ledger.record(
            fence, [records.given_up(row, self.run_id) for row in found.untouched if row["dead_letter_reason"]]
        )
        self._stores.ledger.close_step(fence)

    def _failure(self, row: Row, entries: dict[str, Entry]) -> Message:
        return records.failure(row, entries, self._chain, self.run_id)

    def _dead_letter(self, row: Row, entries: dict[str, Entry]) -> Message:
        return records.dead_letter(row, entries, self._chain, self.run_id, self.store_name)


def was_delivered(entries: dict[str, Entry]) -> bool:
    """Whether a message reached any destination."""
    return any(entry.state == DELIVERED for entry in entries.values())


def is_complete(entries: dict[str, Entry], flows: Sequence[str]) -> bool:
    """Whether nothing is left to do for a message: the source flow dropped it, or every destination is done.

    Who names no destinations cannot tell, and gets a no.
    """
    source = entries.get(SOURCE_FLOW)
    if source is not None and source.state == DROPPED:
        return True
    return bool(flows) and all(flow in entries and entries[flow].state in _COMPLETE for flow in flows)


def _crashes(written: Any) -> int:
    # People write into the table, and not always numbers.
    return written if isinstance(written, int) else 0


def _lives(store: SqlStore, ids: Collection[str]) -> dict[str, int | None]:
    """The copies of messages that wait in this store under these ids, and which message of its id each is of."""
    found = store.browse(len(ids), ids=ids) if ids else []
    return {copy.id: records.life_in(copy) for copy in found if copy.state != ACKNOWLEDGED}


def _head(row: Row) -> Head:
    about = records.subject(row)
    return Head(
        row["id"], about.message_id, about.life, about.batch_id, records.is_failure(row), _crashes(row["crashes"])
    )
