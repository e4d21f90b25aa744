"""Dead-letters messages by hand: an operator decides that they are not to be delivered."""

from __future__ import annotations

from collections.abc import Collection

from homing.delivery import records
from homing.delivery.batch import Batch
from homing.delivery.leased_part import resolve
from homing.delivery.stores import PipelineStores
from homing.failure import dead_letter_id, error_info
from homing.ids import new_id

_LEASE = 60.0


def dead_letter_messages(stores: PipelineStores, ids: Collection[str], reason: str) -> set[str]:
    """Moves those of these messages that wait, or have failed, to the dead-letter store; their ids.

    Leased and finished messages are left as they are. Copied before it is acknowledged, as everywhere.
    """
    batch = Batch(stores, f"homing dead-letter/{new_id()}", flows=())
    stores.store.lease_batch(1, batch_id=batch.run_id, lease=_LEASE, ids=ids)
    failed = [ref.name for refs in resolve(stores, ids).values() for ref in refs]
    stores.failures.lease_batch(1, batch_id=batch.run_id, lease=_LEASE, ids={*ids, *failed})
    error = error_info("GivenUp", reason, "homing dead-letter")
    entries = [
        records.about(row, copies=held.copies)._replace(error=error)
        for held in batch.held()
        for row in held.store.batch_rows(held.lease)
    ]
    fence = stores.ledger.open_step(batch.run_id, "dead-letter", _LEASE)
    stores.ledger.record(fence, entries)
    stores.ledger.close_step(fence)
    batch.dead_letter_failed()
    letters = {dead_letter_id(stores.store.name, entry.ref.name): entry.ref.id for entry in entries}
    return {letters[letter] for letter in stores.dead_letters.view.present(letters)}
