"""What became of messages, one by one: of a batch, or of these ids. For people to look at; changes nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from homing.delivery.records import dead_letter_id
from homing.delivery.settling import is_complete, was_delivered
from homing.delivery.stores import PipelineStores
from homing.ledger import Entry
from homing.stores.sql.scans import Condition

#: The last sequence number there can be.
_LAST = 2**63 - 1


@dataclass(frozen=True)
class Story:
    """Where a message is, or how it ended, and what the ledger has of it by flow; the source flow's key is empty."""

    message_id: str
    outcome: str
    entries: Mapping[str, Entry]


def tell(
    stores: PipelineStores,
    flows: Sequence[str],
    *,
    batch_id: str | None = None,
    ids: Collection[str] = (),
    limit: int = 1000,
) -> list[Story]:
    """The stories of a batch's messages, or of these, `limit` at most."""
    wanted = list(ids) if batch_id is None else _ids_of(stores, batch_id, limit)
    wanted = wanted[:limit]
    # In the direction messages travel: one that moves on meanwhile is seen where it comes to, not nowhere.
    waiting, failed = stores.store.present(wanted), stores.failures.present(wanted)
    letters = stores.dead_letters.present([dead_letter_id(stores.store.name, message_id) for message_id in wanted])
    known = stores.ledger.entries(wanted)

    def outcome(message_id: str, entries: Mapping[str, Entry]) -> str:
        if dead_letter_id(stores.store.name, message_id) in letters:
            return "dead-lettered"
        if message_id in failed:
            return "failed, to be replayed"
        if message_id in waiting:
            return "on its way"
        if is_complete(dict(entries), flows):
            return "delivered" if was_delivered(dict(entries)) else "dropped by rule"
        return "unknown"

    return [
        Story(message_id, outcome(message_id, known.get(message_id, {})), known.get(message_id, {}))
        for message_id in wanted
    ]


def _ids_of(stores: PipelineStores, batch_id: str, limit: int) -> list[str]:
    """What the store still has of the batch, and what the ledger knows of it."""
    mine = [Condition("batch_id", "=", batch_id)]
    pages = stores.store.scans().pages(["sequence", "id"], 0, _LAST, conditions=mine, page=limit)
    held = [str(row[1]) for row in next(pages, [])]
    return list(dict.fromkeys([*held, *stores.ledger.of_batch(batch_id, limit)]))
