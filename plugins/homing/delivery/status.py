"""Says what became of each message of a batch, or of the messages with some ids. For people; changes nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from homing.delivery.leased_part import resolve
from homing.delivery.settlement import is_complete, was_delivered
from homing.delivery.stores import PipelineStores
from homing.failure import dead_letter_id
from homing.ledger import Entry
from homing.message import ACKNOWLEDGED, DEAD, MessageRef
from homing.scans import LAST, Condition

#: What may have become of a message, and how people are told.
OUTCOMES = {
    "dead_lettered": "dead-lettered",
    "failed": "failed, to be replayed",
    "waiting": "on its way",
    "delivered": "delivered",
    "dropped": "dropped by rule",
    "unaccounted": "unknown",
}


@dataclass(frozen=True)
class MessageStatus:
    """Where a message is, or how it ended. `entries` are the ledger's, by flow; the key of the source flow is empty.

    `outcome` is one of the texts of OUTCOMES.
    """

    message_id: str
    outcome: str
    entries: Mapping[str, Entry]


def message_status(
    stores: PipelineStores,
    flows: Sequence[str],
    *,
    batch_id: str | None = None,
    ids: Collection[str] = (),
    limit: int = 1000,
) -> list[MessageStatus]:
    """Returns the status of the messages of a batch, or of all messages with these ids or names; `limit` at most."""
    wanted = _of_ids(stores, ids) if batch_id is None else _of_batch(stores, batch_id, limit)
    wanted = wanted[:limit]
    # In the direction messages travel: one that moves on meanwhile is seen where it comes to, not nowhere.
    states = {ref: state for _, state, ref in stores.store.view.states([ref.id for ref in wanted])}
    failed = stores.failures.view.present([ref.name for ref in wanted])
    letters = stores.dead_letters.view.present([dead_letter_id(stores.store.name, ref.name) for ref in wanted])
    known = stores.ledger.known([ref.id for ref in wanted])

    def outcome(ref: MessageRef) -> str:
        dead = dead_letter_id(stores.store.name, ref.name) in letters
        state = states.get(ref, ACKNOWLEDGED)
        return find_outcome(state, known.get(ref, {}), flows, failed=ref.name in failed, dead=dead)

    return [MessageStatus(ref.id, OUTCOMES[outcome(ref)], known.get(ref, {})) for ref in wanted]


def find_outcome(state: str, entries: dict[str, Entry], flows: Sequence[str], *, failed: bool, dead: bool) -> str:
    """Returns what became of a message, for audit and status alike: one of the keys of OUTCOMES.

    `state` is that in the message store, and ACKNOWLEDGED where it is not there; `failed` and `dead` say whether the
    failure store and the dead-letter store have a copy of it.
    """
    if dead or state == DEAD:
        return "dead_lettered"
    if failed:
        return "failed"
    if state != ACKNOWLEDGED:
        return "waiting"
    if not is_complete(entries, flows):
        return "unaccounted"
    return "delivered" if was_delivered(entries) else "dropped"


def _of_ids(stores: PipelineStores, ids: Collection[str]) -> list[MessageRef]:
    """The messages that are known by each of these ids, or names; a text that none is known by stands for itself."""
    known = resolve(stores, ids)
    for message_id, _, ref in stores.store.view.states(ids):
        known.setdefault(message_id, []).append(ref)
    return list(dict.fromkeys(ref for one in ids for ref in known.get(one, [MessageRef("", 0, one)])))


def _of_batch(stores: PipelineStores, batch_id: str, limit: int) -> list[MessageRef]:
    """What the store still has of the batch, and what the ledger knows of it."""
    mine = [Condition("batch_id", "=", batch_id)]
    pages = stores.store.scans().pages(["sequence", "id", "table_id"], 0, LAST, conditions=mine, page=limit)
    held = [MessageRef.of(row[2], row[0], str(row[1])) for row in next(pages, [])]
    return list(dict.fromkeys([*held, *stores.ledger.of_batch(batch_id, limit)]))
