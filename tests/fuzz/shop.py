"""A pipeline's stores with a message of each kind in them: the neighbours of whatever comes."""

from __future__ import annotations

import uuid

from homing.delivery import Batch, PipelineStores
from homing.failure import is_record
from homing.ledger import DELIVERED, FAILED
from homing.message import ACKNOWLEDGED

FLOWS = ("lake", "crm")
ERROR = {"type": "E", "message": "m", "handler": "crm", "stack": "", "attempt": 1}


def fill(stores: PipelineStores, mark: str) -> set[str]:
    """One message of each kind: finished, waiting for its replay, dead, and waiting. Their ids, which end in `mark`."""
    ids = {name: stores.store.store({"n": 1}, id=f"{name} {mark}") for name in ("finished", "failed", "dead")}
    batch = Batch(stores, uuid.uuid4().hex, FLOWS)
    batch.claim(1000)
    fence = stores.ledger.open_step(batch.run_id, "step", 60)
    for head in batch.messages():
        state = DELIVERED if head.message_id in (ids["finished"],) else FAILED
        stores.ledger.record(fence, [head.entry("lake", DELIVERED), head.entry("crm", state, error=ERROR)])
    batch.settle()
    replay = Batch(stores, f"replay {batch.run_id}", FLOWS)
    replay.reclaim([ids["dead"]])
    fence = stores.ledger.open_step(replay.run_id, "step", 60)
    stores.ledger.record(fence, [head.entry("crm", FAILED, error=ERROR) for head in replay.messages()])
    replay.finish_replay()
    return {*ids.values(), stores.store.store({"n": 1}, id=f"waits {mark}")}


def still_there(stores: PipelineStores, ids: set[str]) -> set[str]:
    """Which of these messages wait, for their delivery or for a replay, or are dead letters."""
    # By what the copies say: what is finished in the store may have been purged from it.
    copies = [*stores.failures.browse(1000), *stores.dead_letters.browse(1000)]
    records = [copy.content for copy in copies if copy.state != ACKNOWLEDGED and is_record(copy.content)]
    moved = {record["message"]["id"] for record in records}
    return stores.store.view.present(ids) | (moved & ids)
