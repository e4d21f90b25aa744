"""Asking any store whether it has something to hand out, without taking anything."""

from __future__ import annotations

from homing.message import AVAILABLE
from homing.store import BROWSE, COUNT, Store
from homing.stores.sql import SqlStore


def has_due(store: Store) -> bool | None:
    """Whether the store has something to hand out; None where it cannot be asked, and only claiming will tell."""
    if isinstance(store, SqlStore):
        return store.has_due()
    counts = count(store)
    if counts is not None:
        return counts[AVAILABLE] > 0
    if BROWSE in store.features:
        return bool(store.browse(1, state=AVAILABLE))
    peek = getattr(store, "peek", None)  # what Service Bus has instead; it also shows what is scheduled
    return None if peek is None else any(message.state == AVAILABLE for message in peek())


def count(store: Store) -> dict[str, int] | None:
    """How many messages there are in each state, as far as the store can tell; None where it cannot."""
    if COUNT in store.features:
        return store.count()
    lengths = getattr(store, "lengths", None)  # what RabbitMQ has instead
    return None if lengths is None else dict(lengths())
