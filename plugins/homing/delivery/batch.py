"""One run's batch: claiming it, keeping it, settling it. Every method may be called twice."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from homing.delivery import records
from homing.delivery.stores import PipelineStores
from homing.ledger import DROPPED, SOURCE_FLOW, Entry
from homing.message import Message
from homing.store import BatchLease
from homing.stores.sql import SqlStore

log = logging.getLogger(__name__)

#: How long a batch is held without a sign of life. Long enough for a scheduler that is slow to start the next task.
DEFAULT_LEASE = 600.0


@dataclass(frozen=True)
class Held:
    """The part of a batch that one store holds for it."""

    store: SqlStore
    lease: BatchLease


@dataclass(frozen=True)
class Settlement:
    """What settling did, in messages."""

    acknowledged: int = 0
    failed: int = 0
    dead_lettered: int = 0
    released: int = 0

    def __str__(self) -> str:
        return (
            f"{self.acknowledged} acknowledged, {self.failed} failed, "
            f"{self.dead_lettered} dead-lettered, {self.released} released"
        )


class Batch:
    """The messages claimed under one run id.

    A first pass claims new messages from the store. A replay, or a pass that was cleared, claims by id what has failed:
    from the failure store, and from the dead-letter store.
    """

    def __init__(self, stores: PipelineStores, run_id: str, flows: Sequence[str], *, chain: str = "") -> None:
        self.run_id = run_id
        self._stores = stores
        self._flows = tuple(flows)
        self._chain = chain

    # -- claiming ----------------------------------------------------------------------------------------------

    def is_known(self) -> bool:
        """Whether this run claimed messages before: then it never claims new ones."""
        return self._stores.store.knows_batch(self.run_id)

    @property
    def store_name(self) -> str:
        return self._stores.store.name

    def unfinished(self, batch_id: str) -> list[str]:
        """The ids of the messages that failed in another batch and were not delivered since."""
        return self._stores.ledger.unfinished(batch_id)

    def claim(self, limit: int, lease: float = DEFAULT_LEASE) -> int:
        """Claims new messages, or finds the batch this run claimed before, with what of it failed since; how many."""
        if self.is_known():
            return self.reclaim(self._stores.ledger.unfinished(self.run_id), lease)
        held = self._stores.store.lease_batch(limit, batch_id=self.run_id, lease=lease)
        self.move_dead()
        return held.size if held else 0

    def reclaim(self, ids: Collection[str], lease: float = DEFAULT_LEASE) -> int:
        """Claims these messages wherever they wait after their failure, and keeps what the run holds already."""
        stores = self._stores
        found = (
            stores.store.lease_batch(1, batch_id=self.run_id, lease=lease, ids=()),
            stores.failures.lease_batch(1, batch_id=self.run_id, lease=lease, ids=ids),
            stores.dead_letters.lease_batch(1, batch_id=self.run_id, lease=lease, ids=ids),
        )
        return sum(held.size for held in found if held is not None)

    def held(self) -> list[Held]:
        """What the run holds now, store by store."""
        stores = (self._stores.store, self._stores.failures, self._stores.dead_letters)
        leases = [(store, store.held_batch(self.run_id)) for store in stores]
        return [Held(store, lease) for store, lease in leases if lease is not None]

    def renew(self, lease: float = DEFAULT_LEASE) -> None:
        """Keeps the batch; raises LeaseLostError when a part of it is no longer the run's."""
        for held in self.held():
            held.store.renew(held.lease, lease)

    # -- settling ----------------------------------------------------------------------------------------------

    def settle(self) -> Settlement:
        """The end of a first pass: complete messages are acknowledged, failed ones wait in the failure store for
        their replay, and those that nobody got to are released."""
        self._stores.ledger.close_steps(self.run_id)
        return self._settle(failed_to=self._stores.failures)

    def finish_replay(self) -> Settlement:
        """The end of a replay whose retries are used up: what failed in it goes to the dead-letter store. What was
        merely there when the replay could not run is released, to be replayed later."""
        self._stores.ledger.close_steps(self.run_id)
        return self._settle(failed_to=self._stores.dead_letters)

    def acknowledge_complete(self) -> int:
        """Acknowledges what is complete and keeps the rest; how many messages are still to be delivered."""
        left = 0
        for held in self.held():
            sorted_rows = self._sort(held)
            held.store.settle_batch(held.lease, [row["id"] for row in sorted_rows.complete])
            left += len(sorted_rows.failed) + len(sorted_rows.untouched)
        return left

    def awaiting_replay(self) -> int:
        """How many messages of this batch wait in the failure store. Asked of the stores, so that a settlement that
        died half-way and is done again still knows."""
        return len(self._stores.failures.present(self._stores.ledger.unfinished(self.run_id)))

    def move_dead(self) -> int:
        """Brings what the store kept aside as dead to the dead-letter store, where people look."""
        dead = self._stores.store.dead_messages()
        if dead:
            self._stores.dead_letters.store_many(
                [records.dead_letter(row, {}, self._chain, row["batch_id"] or self.run_id) for row in dead]
            )
            self._stores.store.finish_dead([row["id"] for row in dead])
            log.warning("dead-lettered %d messages that crashed their consumers too often", len(dead))
        return len(dead)

    def _settle(self, failed_to: SqlStore) -> Settlement:
        total = Settlement()
        for held in self._held_again():
            found = self._sort(held)
            held.store.settle_batch(held.lease, [row["id"] for row in found.complete])
            moved = self._move(held, self._copies(held, found, failed_to), failed_to)
            kept = [row["id"] for row in (*found.untouched, *found.failed) if row["id"] not in moved]
            held.store.settle_batch(held.lease, kept, success=False)
            still_dead = held.store is self._stores.dead_letters
            total = Settlement(
                total.acknowledged + len(found.complete),
                total.failed + (0 if still_dead else len(found.failed)),
                total.dead_lettered + (len(moved) if failed_to is self._stores.dead_letters else 0),
                total.released + len(kept),
            )
        return total

    def _copies(self, held: Held, found: Sorted, failed_to: SqlStore) -> list[Message]:
        """The copies to make of failed messages. What already waits in the failure store, or is dead, stays there
        until a replay has failed for it."""
        if failed_to is self._stores.failures:
            moving, copy = found.failed if held.store is self._stores.store else [], records.failure
        else:
            own = self._stores.ledger.failed_in(self.run_id, [row["id"] for row in found.failed])
            moving = [row for row in found.failed if row["id"] in own and held.store is not failed_to]
            copy = records.dead_letter
        return [copy(row, found.entries[row["id"]], self._chain, self.run_id) for row in moving]

    def _move(self, held: Held, copies: list[Message], to: SqlStore) -> set[str]:
        if not copies:
            return set()
        to.store_many(copies)
        ids = [message.id for message in copies]
        held.store.settle_batch(held.lease, ids)
        for message in copies:
            log.info("message %s went from store %s to %s", message.id, held.store.name, to.name)
        return set(ids)

    def _held_again(self) -> Iterator[Held]:
        """What the run holds, and what it held until its lease ran out, unless somebody else has it by now."""
        stores = self._stores
        for store in (stores.store, stores.failures, stores.dead_letters):
            if not store.knows_batch(self.run_id):
                continue
            lease = store.lease_batch(1, batch_id=self.run_id, lease=DEFAULT_LEASE)
            if lease is not None:
                yield Held(store, lease)

    def _sort(self, held: Held) -> Sorted:
        rows = list(held.store.batch_rows(held.lease))
        entries = self._stores.ledger.entries([row["id"] for row in rows])
        result = Sorted([], [], [], entries)
        for row in rows:
            flows = entries.get(row["id"], {})
            if is_complete(flows, self._flows):
                result.complete.append(row)
            elif any(not entry.done for entry in flows.values()):
                result.failed.append(row)
            else:
                result.untouched.append(row)
        return result


@dataclass(frozen=True)
class Sorted:
    """A batch's rows by what the ledger says of them."""

    complete: list[dict[str, Any]]
    failed: list[dict[str, Any]]
    untouched: list[dict[str, Any]]
    entries: dict[str, dict[str, Entry]]


def is_complete(entries: dict[str, Entry], flows: Sequence[str]) -> bool:
    """Whether nothing is left to do for a message: the source flow dropped it, or every destination is done."""
    source = entries.get(SOURCE_FLOW)
    if source is not None and source.state == DROPPED:
        return True
    return all(flow in entries and entries[flow].done for flow in flows)
