"""Settling: what becomes of the messages of a run at its end.

A message that moves to another store is durable there before it is acknowledged here. Every step may be done twice.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from homing.delivery import crash_tracking, records
from homing.delivery.leased_part import LeasedMessage, LeasedPart, Row, RunLeases, leased_message, weight_of
from homing.errors import ConfigurationError, ContentError, StoreError, StoreUnavailableError, TableMissingError
from homing.failure import ref_in, ref_of, worker_crash
from homing.ledger import DELIVERED, DONE_STATES, DROPPED, FAILED, PROCESSED, SOURCE_FLOW, Entry, Fence
from homing.message import Message, MessageRef
from homing.pipeline_store import PipelineStore
from homing.portions import portions
from homing.store import TOO_LARGE, BatchLease

log = logging.getLogger(__name__)

#: How long a batch is held without a sign of life. Long enough for a scheduler that is slow to start the next task.
DEFAULT_LEASE = 600.0

_AT_ONCE = 1000  # messages that are moved

# Steps in which a settlement only writes to the ledger. Who dies in one of them did not die of a message.
_TAKE_UP, _GIVEN_UP = "take up", "store"

# A store that is away, incomplete or forbidden refuses no single message: nothing can be said of any of them.
_NO_MESSAGES_FAULT = (StoreUnavailableError, TableMissingError, ConfigurationError)

# A source flow that went well delivers nothing by itself.
_COMPLETE = DONE_STATES - {PROCESSED}


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
    """The messages of one part of a batch, sorted by what the ledger says of them.

    The keys of `entries` are the ids of the rows, and then the names of the flows.
    """

    complete: list[LeasedMessage]
    failed: list[LeasedMessage]
    untouched: list[LeasedMessage]
    entries: dict[str, dict[str, Entry]]


class Settler:
    """Sorts the messages that a run holds by what the ledger says of them, and acknowledges, moves or releases each."""

    def __init__(self, holding: RunLeases, flows: Sequence[str], chain: str) -> None:
        self._holding = holding
        self._stores = holding.stores
        self._flows = tuple(flows)
        self._chain = chain

    @property
    def store_name(self) -> str:
        return self._stores.store.name

    def settle(self, failed_to: PipelineStore, *, tried: bool = True) -> Settlement:
        """Acknowledges what is complete, moves what failed, and releases the rest. See `Batch.settle`.

        Without `tried`, failures that no replay has tried are moved too.
        """
        total = Settlement()
        crashed = self._take_over()
        parts = list(self._held_again())
        self._count_crashes(parts, crashed)
        for held in parts:
            found = self._sort(held)
            self._finish(held, [message.row_id for message in found.complete])
            gone, stuck = self._move(held, self._moving(held, found, failed_to, tried), found, failed_to)
            settled = gone | stuck
            kept = [message.row_id for message in (*found.untouched, *found.failed) if message.row_id not in settled]
            held.store.settle_batch(held.lease, kept, success=False)
            dead = failed_to is self._stores.dead_letters
            total = Settlement(
                total.acknowledged + len(found.complete),
                total.failed + (0 if dead else len(gone)),
                total.dead_lettered + (len(gone) if dead else 0) + len(stuck),
                total.released + len(kept),
                total.dropped + sum(not was_delivered(found.entries[message.row_id]) for message in found.complete),
            )
        self._stores.ledger.close_steps(self._holding.run_id)
        return total

    def release(self) -> None:
        """Gives back what the run holds. See `Batch.release`."""
        for held in self._holding.parts():
            ids = [head.row_id for head in self._holding.messages_of(held)]
            held.store.settle_batch(held.lease, ids, success=False)

    def acknowledge_complete(self) -> int:
        """Acknowledges what is complete and keeps the rest. Returns how many messages are still to be delivered."""
        return sum(
            sum(self._holding.ask(held.store, partial(self._acknowledge, held))) for held in self._holding.parts()
        )

    def _acknowledge(self, held: LeasedPart, _store: PipelineStore) -> int:
        """Acknowledges the complete messages of one part. Returns how many of the part are still to be delivered."""
        found = self._sort(held)
        self._finish(held, [message.row_id for message in found.complete])
        return len(found.failed) + len(found.untouched)

    def completed(self, messages: Collection[LeasedMessage]) -> Settlement:
        """Returns how many of these messages are complete by now, and how many of the complete ones were dropped."""
        known = self._stores.ledger.known([message.message_id for message in messages])
        found = [known.get(message.ref, {}) for message in messages]
        complete = [entries for entries in found if is_complete(entries, self._flows)]
        return Settlement(len(complete), dropped=sum(not was_delivered(entries) for entries in complete))

    def move_dead(self) -> int:
        """Moves messages that a store kept aside as dead to the dead-letter store. Returns how many it moved."""
        moved = 0
        for store in (self._stores.store, self._stores.failures):
            copies = self._stores.hold_copies(store)
            stay = 0
            while rows := {row["id"]: row for row in store.dead_messages(stay)}:
                found = self._sorted([leased_message(row, copies=copies) for row in rows.values()])
                open_ids = [message.row_id for message in (*found.failed, *found.untouched)]
                letters = {one: self._dead_letter(rows[one], found.entries[one], copies) for one in open_ids}
                letters, _ = _by_size(letters, self._stores.dead_letters)
                # First of all, because the ledger is how a pipeline knows its own dead letters among those of others.
                self._record_as_failed([rows[message.row_id] for message in found.untouched], copies)
                there = self._copy(letters, self._stores.dead_letters)
                if there:
                    log.warning("dead-lettered %d messages that their store had given up", len(there))
                finished = [*there, *(message.row_id for message in found.complete)]
                store.finish_dead(finished)
                moved += len(there)
                stay += len(rows) - len(finished)
        return moved

    def sort_out(self, held: LeasedPart, taken: Collection[str]) -> set[str]:
        """Keeps the messages of this part that the run is to work on. Returns their ids.

        Of a failure store or dead-letter store, it releases dead letters of other pipelines, messages that failed in
        another chain, messages whose id is in `taken`, and, where messages share an id, all but the last of them.
        """
        messages = self._holding.messages_of(held)
        if held.copies:
            kept = {message.message_id: message for message in messages if message.message_id not in taken}
            if held.store is self._stores.dead_letters:
                known = self._stores.ledger.known(kept)
                kept = {one: message for one, message in kept.items() if self._stores.is_own(message.ref, known)}
            foreign = self._tell_ledger(held, kept.values())
            kept = {one: message for one, message in kept.items() if message.row_id not in foreign}
            mine = {message.row_id for message in kept.values()}
            others = [message.row_id for message in messages if message.row_id not in mine]
            held.store.settle_batch(held.lease, others, success=False)
            messages = list(kept.values())
        return self._finish_moves(held, messages)

    def _tell_ledger(self, held: LeasedPart, messages: Collection[LeasedMessage]) -> set[str]:
        """Records in the ledger what the failure records of these messages say, if the ledger knows nothing of them.

        These are messages that a chain or a listener gave up, and not a run. From then on the ledger knows which of
        their destinations are done.

        Returns the ids of the rows whose messages failed in another chain, of which nothing is recorded: what is done
        in that chain says nothing about the destinations of this one.
        """
        ledger, run_id = self._stores.ledger, self._holding.run_id
        known = ledger.known([message.message_id for message in messages])
        untold = [message.row_id for message in messages if message.wrapped and message.ref not in known]
        foreign = set[str]()
        if not untold:
            return foreign
        fence = ledger.open_step(run_id, _TAKE_UP, DEFAULT_LEASE)
        for row in held.store.batch_rows(held.lease, ids=untold):
            if records.chain_of(row) in ("", self._chain) or not self._chain:
                ledger.record(fence, records.recorded_entries(row, run_id))
            else:
                log.warning("message %s failed in another chain than %s, and is left to it", row["id"], self._chain)
                foreign.add(row["id"])
        ledger.close_step(fence)
        return foreign

    def _finish_moves(self, held: LeasedPart, messages: list[LeasedMessage]) -> set[str]:
        """Acknowledges the messages that an earlier settlement had copied already when it died: the copy counts now.

        Returns the ids of the other messages.
        """
        if held.store is self._stores.dead_letters:
            return {message.message_id for message in messages}
        to = self._stores.dead_letters if held.copies else self._stores.failures
        refs = {self._holding.id_in(to, message.ref.name): message.ref for message in messages}
        there = next(iter(self._holding.ask(to, lambda store: _kept(store, refs))), set())
        moved = {message.row_id for message in messages if message.ref in there}
        self._finish(held, moved)
        return {message.message_id for message in messages if message.row_id not in moved}

    # -- crashes -----------------------------------------------------------------------------------------------

    def _take_over(self) -> list[Fence]:
        """Takes over every step that did not come to its end, and records as failed the message it was working on.

        Returns the steps of which that message is not known.
        """
        ledger, run_id, unknown = self._stores.ledger, self._holding.run_id, list[Fence]()
        for step in ledger.left_open(run_id):
            fence = ledger.open_step(run_id, step, DEFAULT_LEASE)
            if step not in (_TAKE_UP, _GIVEN_UP) and crash_tracking.record_crash(ledger, fence) is None:
                unknown.append(fence)
            else:
                ledger.close_step(fence)  # or a settlement done again would find no suspect, and blame every message
        return unknown

    def _count_crashes(self, parts: Sequence[LeasedPart], crashed: Sequence[Fence]) -> None:
        """Counts a crash for each message that one of these steps may have died of."""
        for held in parts if crashed else ():
            self._count_crash(held, crashed)
        # Before anything is moved, which may fail: a settlement that is done again does not count the same deaths.
        for fence in crashed:
            self._stores.ledger.close_step(fence)

    def _count_crash(self, held: LeasedPart, crashed: Sequence[Fence]) -> None:
        """Counts a crash for each message of one part that one of these steps may have died of.

        A message with `max_deliveries` crashes is recorded as failed. Its replay handles it alone, and so shows whether
        it crashes its worker.
        """
        found = self._sort(held)
        spans = [crash_tracking.span_of(fence) for fence in crashed]
        failed_before = [message for message in found.failed if not self._failed_here(found.entries[message.row_id])]
        died = [
            message
            for message in (*found.untouched, *failed_before)
            if any(span is None or span.covers(message.row_id, message.message_id) for span in spans)
        ]
        held.store.count_crash(held.lease, [message.row_id for message in died])
        most = held.store.properties.max_deliveries
        error = worker_crash(crashed[0].step, most)
        worst = [message for message in died if message.crashes + 1 >= most]
        self._stores.ledger.record(crashed[0], [message.entry(SOURCE_FLOW, FAILED, error=error) for message in worst])

    # -- moving ------------------------------------------------------------------------------------------------

    def _moving(self, held: LeasedPart, found: Sorted, failed_to: PipelineStore, tried: bool) -> list[LeasedMessage]:
        """Returns the failed messages of one part that are to be moved to `failed_to`.

        To the failure store go those of the message store. To the dead-letter store go those that failed in this run;
        without `tried`, also those that failed before it.
        """
        if failed_to is self._stores.failures:
            return found.failed if held.store is self._stores.store else []
        if held.store is failed_to:
            return []
        return [message for message in found.failed if not tried or self._failed_here(found.entries[message.row_id])]

    def _failed_here(self, entries: dict[str, Entry]) -> bool:
        run_id = self._holding.run_id
        return any(entry.state == FAILED and entry.run_id == run_id for entry in entries.values())

    def _move(
        self, held: LeasedPart, moving: list[LeasedMessage], found: Sorted, to: PipelineStore
    ) -> tuple[set[str], set[str]]:
        """Moves these messages to the store `to`.

        Returns the ids of those that are there now, and the ids of those whose records are too large for that store.
        The latter stay where they are, as dead.
        """
        gone, stuck = set[str](), set[str]()
        for copies in self._copies(held, moving, found, to):
            small, large = _by_size(copies, to)
            there = self._copy(small, to)
            self._finish(held, there)
            for one, why in large.items():
                held.store.dead_letter_batch(held.lease, [one], TOO_LARGE, why)
            gone |= there
            stuck |= large.keys()
        if gone:
            log.info("%d messages went from store %s to %s", len(gone), held.store.name, to.name)
        return gone, stuck

    def _copies(
        self, held: LeasedPart, moving: list[LeasedMessage], found: Sorted, to: PipelineStore
    ) -> Iterator[dict[str, Message]]:
        """What the other store is to hold of these messages, by the ids of their rows, a portion at a time."""
        make = self._dead_letter if to is self._stores.dead_letters else self._failure
        rows = held.store.batch_rows(held.lease, ids=[message.row_id for message in moving]) if moving else ()
        for portion in portions(rows, weight_of, most=_AT_ONCE):
            yield {row["id"]: make(row, found.entries[row["id"]], held.copies) for row in portion}

    def _copy(self, copies: dict[str, Message], to: PipelineStore) -> set[str]:
        """Stores these copies, given by the ids of their rows; the ids of the rows whose copies are there now."""
        refused = _store(list(copies.values()), to) if copies else set[str]()
        missing = _missing(copies, to)
        known = [copy for copy in missing.values() if copy.id not in refused]
        if known:
            # An id that the store knew already was not stored. One that is finished there makes way.
            to.forget_finished([copy.id for copy in known])
            refused |= _store(known, to)
            missing = _missing(missing, to)
        taken = [one for one, copy in missing.items() if copy.id not in refused]
        if taken:
            log.warning("message %s stays where it is: another message has its id in store %s", min(taken), to.name)
        return copies.keys() - missing

    def _finish(self, held: LeasedPart, ids: Collection[str]) -> None:
        """Acknowledges messages. Of a failure record nothing need be kept: the ledger knows the message's story."""
        if held.store is self._stores.store:
            held.store.settle_batch(held.lease, list(ids))
        else:
            held.store.forget_batch(held.lease, list(ids))

    # -- sorting -----------------------------------------------------------------------------------------------

    def _held_again(self) -> Iterator[LeasedPart]:
        """What the run holds, and what it held until its lease ran out, unless another run has it by now."""
        run_id = self._holding.run_id

        def again(store: PipelineStore) -> tuple[PipelineStore, BatchLease | None]:
            known = store.knows_batch(run_id)
            return store, store.lease_batch(1, batch_id=run_id, lease=DEFAULT_LEASE, ids=()) if known else None

        for store, lease in self._holding.each(again):
            if lease is not None:
                yield self._holding.part(store, lease)

    def _sort(self, held: LeasedPart) -> Sorted:
        return self._sorted(self._holding.messages_of(held))

    def _sorted(self, messages: list[LeasedMessage]) -> Sorted:
        known = self._stores.ledger.known([message.message_id for message in messages])
        result = Sorted([], [], [], {})
        for message in messages:
            entries = result.entries[message.row_id] = known.get(message.ref, {})
            if is_complete(entries, self._flows):
                result.complete.append(message)
            elif any(not entry.done for entry in entries.values()):
                result.failed.append(message)
            else:
                result.untouched.append(message)
        return result

    def _record_as_failed(self, rows: list[Row], copies: bool) -> None:
        """Notes what a store gave up, so that replaying the batch finds it."""
        if not rows:
            return
        ledger, run_id = self._stores.ledger, self._holding.run_id
        fence = ledger.open_step(run_id, _GIVEN_UP, DEFAULT_LEASE)
        ledger.record(
            fence, [records.given_up(row, run_id, copies=copies) for row in rows if row["dead_letter_reason"]]
        )
        ledger.close_step(fence)

    def _failure(self, row: Row, entries: dict[str, Entry], copies: bool) -> Message:
        return records.failure(row, entries, self._chain, self._holding.run_id, copies=copies)

    def _dead_letter(self, row: Row, entries: dict[str, Entry], copies: bool) -> Message:
        return records.dead_letter(row, entries, self._chain, self._holding.run_id, self.store_name, copies=copies)


def was_delivered(entries: dict[str, Entry]) -> bool:
    """Whether a message reached any destination."""
    return any(entry.state == DELIVERED for entry in entries.values())


def is_complete(entries: dict[str, Entry], flows: Sequence[str]) -> bool:
    """Whether nothing is left to do for a message: the source flow dropped it, or every destination is done.

    False when `flows` is empty and the source flow did not drop it.
    """
    source = entries.get(SOURCE_FLOW)
    if source is not None and source.state == DROPPED:
        return True
    return bool(flows) and all(flow in entries and entries[flow].state in _COMPLETE for flow in flows)


def _by_size(copies: dict[str, Message], to: PipelineStore) -> tuple[dict[str, Message], dict[str, str]]:
    """Returns the copies that the store `to` takes, and for each of the others why it is too large.

    A message that came in through `store()` leaves room for its failure record. One that another program wrote into the
    table may not.
    """
    large = {one: str(why) for one, copy in copies.items() if (why := to.refusal(copy)) is not None}
    for one, text in large.items():
        log.error("message %s stays where it is, dead: %s", one, text)
    return {one: copy for one, copy in copies.items() if one not in large}, large


def _store(copies: Sequence[Message], to: PipelineStore) -> set[str]:
    """Stores these copies, except those that the store refuses, each of which is told to the log. Returns their ids.

    A store takes all or none. So those that are refused are found by halving, and the others do not wait for them.
    """
    try:
        to.store_many(copies)
    except _NO_MESSAGES_FAULT:
        raise
    except (StoreError, ContentError) as error:
        if len(copies) == 1:
            stays = copies[0].id
            log.error("message %s stays where it is: store %s refuses it: %s", stays, to.name, error)  # noqa: TRY400
            return {stays}
        half = len(copies) // 2
        return _store(copies[:half], to) | _store(copies[half:], to)
    return set()


def _missing(copies: Mapping[str, Message], to: PipelineStore) -> dict[str, Message]:
    """Those of these copies that are not in the store."""
    refs = {copy.id: ref_of(copy.content) for copy in copies.values()}
    there = _kept(to, refs)
    return {one: copy for one, copy in copies.items() if refs[copy.id] not in there}


def _kept(store: PipelineStore, refs: Mapping[str, MessageRef]) -> set[MessageRef]:
    """Returns the messages of which this store has a copy that is not finished; the keys of `refs` are the copies' ids.

    It looks at what the copy records, and not only at its id: something else may have been stored under that id.
    """
    there = store.view.look(list(refs)) if refs else ()
    return {refs[copy.id] for copy in there if ref_in(copy) == refs[copy.id]}
