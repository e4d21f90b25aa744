"""Asking any store whether it has something to hand out, without taking anything."""

from __future__ import annotations

from collections.abc import Callable

from homing.message import AVAILABLE, Message
from homing.pipeline_store import is_pipeline_store
from homing.store import BROWSE, COUNT, Store


def has_due(store: Store) -> bool | None:
    """Whether the store has something to hand out; None where it cannot be asked, and only claiming will tell."""
    if is_pipeline_store(store):
        return store.has_due()
    counts = count(store)
    if counts is not None:
        return counts[AVAILABLE] > 0
    if BROWSE in store.features:
        return bool(store.browse(1, state=AVAILABLE))
    peek = getattr(store, "peek", None)  # what Service Bus has instead
    return None if peek is None else _shows_available(peek)


def _shows_available(peek: Callable[..., list[Message]]) -> bool:
    """Whether there is one that can be handed out, before, between or behind those that are scheduled or deferred."""
    after = 0
    while page := peek(after=after):
        if any(message.state == AVAILABLE for message in page):
            return True
        after = page[-1].sequence_number or after + 1
    return False


def count(store: Store) -> dict[str, int] | None:
    """How many messages there are in each state, as far as the store can tell; None where it cannot."""
    if COUNT in store.features:
        return store.count()
    lengths = getattr(store, "lengths", None)  # what RabbitMQ has instead
    return None if lengths is None else dict(lengths())
