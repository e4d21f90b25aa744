"""One run's batch: claiming it, keeping it, settling it. Every method may be called twice."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta, timezone

from homing.delivery.leased_part import LeasedMessage, LeasedPart, RunLeases, resolve
from homing.delivery.retention import tidy_up
from homing.delivery.settlement import DEFAULT_LEASE, Settlement, Settler, is_complete
from homing.delivery.stores import PipelineStores
from homing.errors import HomingError
from homing.failure import WORKER_CRASH
from homing.ledger import Ledger
from homing.message import MessageRef
from homing.pipeline_store import PipelineStore
from homing.scans import Condition

log = logging.getLogger(__name__)

#: What has waited in the failure store for this long has lost the replay that was meant for it.
STRANDED_AFTER = 300.0

_AT_ONCE = 10_000  # messages that the ledger is asked about


class Batch:
    """The messages claimed under one run id.

    A first pass claims new messages from the store. A replay, or a pass that was cleared, claims by id what has failed:
    from the failure store, and from the dead-letter store. While the dead-letter store is away, the run goes on without
    its messages.
    """

    def __init__(self, stores: PipelineStores, run_id: str, flows: Sequence[str], *, chain: str = "") -> None:
        self.run_id = run_id
        self._stores = stores
        self._holding = RunLeases(stores, run_id)
        self._settling = Settler(self._holding, flows, chain)

    @property
    def store_name(self) -> str:
        return self._stores.store.name

    @property
    def ledger(self) -> Ledger:
        return self._stores.ledger

    # -- claiming ----------------------------------------------------------------------------------------------

    def is_known(self) -> bool:
        """Whether this run has messages of its own: then it never claims new ones."""
        return self._stores.store.knows_batch(self.run_id)

    def unfinished(self, batch_id: str) -> list[MessageRef]:
        """The messages that failed in a batch and were not delivered since."""
        return self._stores.ledger.unfinished(batch_id)

    def unknown(self, ids: Collection[str], batch_id: str | None) -> list[str]:
        """Returns which of these messages are not known here, and the batch if it is not known.

        `ids` are ids or names of messages. Each text returned says "message ..." or "batch ...".
        """
        known = resolve(self._stores, ids)
        missing = [f"message {one}" for one in ids if one not in known]
        if batch_id and not self._stores.store.knows_batch(batch_id) and not self.unfinished(batch_id):
            missing.append(f"batch {batch_id}")
        return missing

    def stranded(self) -> list[str]:
        """The names of messages in the failure store whose own replay never came, or could not run."""
        return self._stores.failures.view.overdue(STRANDED_AFTER)

    def claim(self, limit: int, lease: float = DEFAULT_LEASE, *, partitions: Collection[int] | None = None) -> int:
        """Claims new messages for this run; with `partitions`, only those of these partitions. Returns how many.

        A run that has claimed messages before claims no new ones. It keeps its batch, and claims again those messages
        of it that failed since.
        """
        if self.is_known():
            return self.reclaim(self.unfinished(self.run_id), lease)
        self._holding.ask(self._stores.dead_letters, lambda _: self._stores.require_apart())
        self._require_rights()
        held = self._stores.store.lease_batch(limit, batch_id=self.run_id, lease=lease, partitions=partitions)
        self._try_move_dead()
        return held.size if held else 0

    def reclaim(self, wanted: Collection[str | MessageRef] = (), lease: float = DEFAULT_LEASE) -> int:
        """Claims these messages from the store in which they wait after their failure, and keeps what the run holds.

        A text is the id of messages, or the name of one. Where messages share an id, only the last of them is held at a
        time; the others wait for replays of their own. Returns how many messages the run holds then.
        """
        names, mine = self._holding.names(wanted), set[str]()
        self._require_rights()

        def again(store: PipelineStore) -> None:
            ids = [self._holding.id_in(store, name) for name in names] if self._stores.hold_copies(store) else []
            store.lease_batch(1, batch_id=self.run_id, lease=lease, ids=ids)
            held = store.held_batch(self.run_id)
            if held is not None:
                mine.update(self._settling.sort_out(self._holding.part(store, held), mine))

        self._holding.each(again)
        return sum(held.lease.size for held in self.held())

    def _require_rights(self) -> None:
        """Raises NotPermittedError where what is claimed could not be settled."""

        def require(store: PipelineStore) -> None:
            store.access.require_consumer(pipeline=store is self._stores.store)

        self._holding.each(require)

    def held(self) -> list[LeasedPart]:
        """What the run holds now, store by store."""
        return self._holding.parts()

    def messages(self) -> list[LeasedMessage]:
        """The messages the run holds now, without their contents."""
        return [message for held in self.held() for message in self._holding.messages_of(held)]

    def is_new(self, part: LeasedPart) -> bool:
        """Whether all messages of this part have come to the run as they were stored: never leased and never failed
        before."""
        return part.store is self._stores.store and part.lease.new and not self.unfinished(self.run_id)

    def outstanding(self, flows: Sequence[str]) -> bool:
        """Whether one of the messages the run holds is not done with in one of these flows."""
        messages = self.messages()
        for start in range(0, len(messages), _AT_ONCE):
            some = messages[start : start + _AT_ONCE]
            known = self._stores.ledger.known([message.message_id for message in some])
            if not all(is_complete(known.get(message.ref, {}), flows) for message in some):
                return True
        return False

    def crashed_before(self) -> bool:
        """Whether a process died while it held one of these messages. They are then handled one at a time."""
        for held in self.held():
            if held.store.scans().span(conditions=[*held.conditions, Condition("crashes", ">", 0)]) is not None:
                return True
            if held.store is not self._stores.store and self._known_to_kill(held):
                return True
        return False

    def _known_to_kill(self, held: LeasedPart) -> bool:
        known = self._stores.ledger.known([message.message_id for message in self._holding.messages_of(held)])
        errors = [entry.error for flows in known.values() for entry in flows.values() if not entry.done]
        return any(error is not None and error["type"] == WORKER_CRASH for error in errors)

    # -- settling ----------------------------------------------------------------------------------------------

    def settle(self) -> Settlement:
        """The end of a first pass: complete messages are acknowledged, failed ones wait in the failure store for
        their replay, and those that were not reached are released.

        If a step did not come to its end, the message it was working on has failed. If that message is not known, a
        crash is counted for each that it may have been; a message with `max_deliveries` crashes has failed, too.
        """
        settlement = self._settling.settle(failed_to=self._stores.failures)
        tidy_up(self._stores)
        return settlement

    def finish_replay(self) -> Settlement:
        """The end of a replay whose retries are used up: messages that failed in it go to the dead-letter store.

        Messages that were not tried, because the replay could not run, are released to be replayed later. Crashes count
        as in `settle`.
        """
        self._try_move_dead()
        return self.dead_letter_failed()

    def dead_letter_failed(self) -> Settlement:
        """Brings what failed in this run to the dead-letter store, and releases the rest."""
        return self._settling.settle(failed_to=self._stores.dead_letters)

    def reject(self, ids: Collection[str | MessageRef]) -> Settlement:
        """Brings these failures to the dead-letter store as they are: a person decided that they are not to be
        replayed. A replay that names them takes them up from there."""
        self.reclaim(ids)
        return self._settling.settle(failed_to=self._stores.dead_letters, tried=False)

    def release(self) -> None:
        """Gives back all that the run holds, as it is: the run could not work on it, and no message is to blame."""
        self._settling.release()

    def put_off(self, ids: Collection[str | MessageRef], seconds: float) -> None:
        """Makes these failures wait for so long before they count as stranded. A replay that names them has them at
        once."""
        self._stores.failures.reschedule(
            self._holding.names(ids), datetime.now(timezone.utc) + timedelta(seconds=seconds)
        )

    def is_open(self, step: str) -> bool:
        """Whether a process works on this step of the run, or died at it lately: its lease has not run out."""
        return self._stores.ledger.is_open(self.run_id, step)

    def close_step(self, step: str) -> None:
        """Ends a step that was stopped on purpose: the message it was working on is not to blame. What still runs of it
        stops at its next record."""
        self._stores.ledger.close_step(self._stores.ledger.open_step(self.run_id, step, DEFAULT_LEASE))

    def acknowledge_complete(self) -> int:
        """Acknowledges what is complete and keeps the rest. Returns how many messages are still to be delivered."""
        return self._settling.acknowledge_complete()

    def completed(self, messages: Collection[LeasedMessage]) -> Settlement:
        """Returns how many of these messages are complete by now, and how many of the complete ones were dropped."""
        return self._settling.completed(messages)

    def move_dead(self) -> int:
        """Moves messages that a store kept aside as dead to the dead-letter store. Returns how many it moved."""
        return self._settling.move_dead()

    def awaiting_replay(self) -> int:
        """Returns how many messages of this batch wait in the failure store.

        It asks the store: so a settlement that died half-way and is done again gets the right number, too.
        """
        return len(self._stores.failures.view.present([ref.name for ref in self.unfinished(self.run_id)]))

    def set_aside(self) -> set[MessageRef]:
        """The messages of this batch that wait in the failure store, or are dead letters: a run that claims again takes
        them up."""
        unfinished = self.unfinished(self.run_id)

        def kept(store: PipelineStore) -> set[MessageRef]:
            copies = {self._holding.id_in(store, ref.name): ref for ref in unfinished}
            return {copies[copy_id] for copy_id in store.view.present(copies)}

        places = self._stores.failures, self._stores.dead_letters
        return {ref for store in places for found in self._holding.ask(store, kept) for ref in found}

    def _try_move_dead(self) -> None:
        """Moves dead messages if that is possible now. An error is only logged: the run must not stop for them."""
        try:
            self.move_dead()
        except HomingError as error:
            log.warning("the dead messages of store %s stay there for now: %s", self.store_name, error)
