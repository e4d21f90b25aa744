"""Retention: what is finished is removed some time later, the message first and its ledger last.

In this order, because a message without its ledger would look as if it had never been delivered, while a ledger without
its message is of nothing that could still be delivered. A process that dies in between leaves the ledger, and the next
one removes it.
"""

from __future__ import annotations

import logging
import time

from homing.delivery.stores import PipelineStores
from homing.errors import HomingError
from homing.failure import dead_letter_id
from homing.message import MessageRef

log = logging.getLogger(__name__)

_PATIENCE = 10.0  # seconds that a run which has its work done gives to what is old


def tidy_up(stores: PipelineStores) -> None:
    """Removes what the store's `purge_after` and `ledger_retention` say, for some seconds; what is left is for the next
    time. Trouble is told to the log: nothing depends on it."""
    try:
        properties = stores.store.properties
        if not properties.purge_after:
            return  # then people purge, and the ledger stays as long as its messages
        stores.store.purge()
        if properties.ledger_retention:
            trim_ledger(stores, properties.ledger_retention, patience=_PATIENCE)
    except HomingError as error:
        log.warning("what is old in store %s stays for now: %s", stores.store.name, error)


def trim_ledger(stores: PipelineStores, older_than: float, *, patience: float = float("inf")) -> int:
    """Removes the ledger of messages that are done with, had their last record so many seconds ago, and are in no store
    any more; of how many messages. In portions, each a transaction of its own, and for `patience` seconds at most."""
    removed, limit = 0, time.monotonic() + patience
    for done in stores.ledger.done_before(older_than):
        gone = _nowhere(stores, done)
        stores.ledger.remove(gone)
        removed += len(gone)
        if time.monotonic() > limit:
            break
    return removed


def count_trimmable(stores: PipelineStores, older_than: float) -> int:
    """Of how many messages `trim_ledger` would remove the ledger now."""
    return sum(len(_nowhere(stores, done)) for done in stores.ledger.done_before(older_than))


def _nowhere(stores: PipelineStores, refs: list[MessageRef]) -> list[MessageRef]:
    """Those of these messages that no store has. A replay that died may have left a copy of one that was delivered: the
    ledger alone keeps it from being delivered again."""
    # In the direction messages travel: one that moves on meanwhile is seen where it comes to.
    here = {ref for _, _, ref in stores.store.view.states([ref.id for ref in refs])} if refs else set()
    refs = [ref for ref in refs if ref not in here]
    failed = stores.failures.view.present([ref.name for ref in refs])
    letters = {dead_letter_id(stores.store.name, ref.name): ref for ref in refs if ref.name not in failed}
    dead = stores.dead_letters.view.present(letters)
    return [ref for letter, ref in letters.items() if letter not in dead]
