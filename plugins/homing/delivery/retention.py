"""Retention: removes finished messages after some time, first the message and then its ledger.

The order matters: a message without its ledger would look as if it had never been delivered. A ledger without its
message does no harm. If a process dies in between, the ledger is left, and the next process removes it.
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
    """Removes what is older than the store's `purge_after` and `ledger_retention`.

    It stops after some seconds, and leaves the rest for the next time. Errors are only logged, because nothing depends
    on it.
    """
    try:
        properties = stores.store.properties
        if not properties.purge_after:
            return  # then people purge, and the ledger stays as long as its messages
        stores.store.purge()
        if properties.ledger_retention:
            trim_ledger(stores, properties.ledger_retention, patience=_PATIENCE)
    except HomingError as error:
        log.warning("the old messages of store %s are not removed for now: %s", stores.store.name, error)


def trim_ledger(stores: PipelineStores, older_than: float, *, patience: float = float("inf")) -> int:
    """Removes the ledger of messages that are done and in no store any more. Returns of how many messages.

    Their last record must be `older_than` seconds old. It removes portions, each in a transaction of its own, and stops
    after `patience` seconds.
    """
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
    """Returns those of these messages that are in no store of the pipeline.

    A replay that died may have left a copy of a message that was delivered. The ledger of such a message must stay: it
    alone keeps the copy from being delivered again.
    """
    # In the direction messages travel: one that moves on meanwhile is seen where it comes to.
    here = {ref for _, _, ref in stores.store.view.states([ref.id for ref in refs])} if refs else set()
    refs = [ref for ref in refs if ref not in here]
    failed = stores.failures.view.present([ref.name for ref in refs])
    letters = {dead_letter_id(stores.store.name, ref.name): ref for ref in refs if ref.name not in failed}
    dead = stores.dead_letters.view.present(letters)
    return [ref for letter, ref in letters.items() if letter not in dead]
