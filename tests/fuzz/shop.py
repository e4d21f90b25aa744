"""A pipeline's stores with a message of each kind in them: the neighbours of whatever comes."""

from __future__ import annotations

import uuid

from homing.delivery import Batch, PipelineStores, records
from homing.ledger import DELIVERED, FAILED, Entry

FLOWS = ("lake", "crm")
ERROR = {"type": "E", "message": "m", "handler": "crm", "stack": "", "attempt": 1}


def fill(stores: PipelineStores, mark: str) -> set[str]:
    """One message of each kind: finished, waiting for its replay, dead, and waiting. Their ids, which end in `mark`."""
    ids = {name: stores.store.store({"n": 1}, id=f"{name} {mark}") for name in ("finished", "failed", "dead")}
    batch = Batch(stores, uuid.uuid4().hex, FLOWS)
    batch.claim(1000)
    fence = stores.ledger.open_step(batch.run_id, "step", 60)
    for head in batch.heads():
        state = DELIVERED if head.message_id in (ids["finished"],) else FAILED
        about = {"batch_id": head.batch_id, "life": head.life}
        stores.ledger.record(fence, [Entry(head.message_id, "lake", DELIVERED, **about)])
        stores.ledger.record(fence, [Entry(head.message_id, "crm", state, error=ERROR, **about)])
    batch.settle()
    replay = Batch(stores, f"replay {batch.run_id}", FLOWS)
    replay.reclaim([ids["dead"]])
    fence = stores.ledger.open_step(replay.run_id, "step", 60)
    stores.ledger.record(fence, [Entry(ids["dead"], "crm", FAILED, error=ERROR, batch_id=batch.run_id)])
    replay.finish_replay()
    return {*ids.values(), stores.store.store({"n": 1}, id=f"waits {mark}")}


def still_there(stores: PipelineStores, ids: set[str]) -> set[str]:
    """Which of these messages wait, for their delivery or for a replay, or are dead letters."""
    letters = {records.dead_letter_id(stores.store.name, one): one for one in ids}
    dead = {letters[letter] for letter in stores.dead_letters.present(letters)}
    return stores.store.present(ids) | stores.failures.present(ids) | dead
