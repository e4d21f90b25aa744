"""Intake: messages of a broker, taken over into the store a pipeline works on.

A broker's lease ends with the connection that holds it, so the tasks of a run cannot hand it on. What such a source
holds is written to the target first, and acknowledged at the source only when it is committed there. Whatever dies in
between, the source hands the message out again and the target, which knows its id, does not store it twice.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from homing.errors import LeaseLostError, NotInFlightError, StoreUnavailableError, UnstorableContentError
from homing.message import AVAILABLE, Message
from homing.store import DEAD_LETTER, UNREADABLE, Store

log = logging.getLogger(__name__)

_GROUP = 100  # messages in one commit: few enough to be committed well within the source's lease


def take_in(source: Store, target: Store, limit: int) -> int:
    """Moves up to `limit` messages that are due at the source into the target; how many of them were new to it.

    `target` needs the abilities bulk, browse and deduplication. What it refuses to store is dead-lettered at the
    source, with the refusal as its reason. Raises what the stores raise: nothing is lost then, the next call goes on.
    """
    taken = new = 0
    while taken < limit:
        group = _retrieve(source, min(_GROUP, limit - taken))
        if not group:
            break
        taken += len(group)
        stored, fresh = _store(group, source, target)
        new += fresh
        if not _acknowledge(stored, source):
            break
    if taken:
        log.info("took in %d messages of store %r, %d of them new to store %r", taken, source.name, new, target.name)
    return new


def _retrieve(source: Store, limit: int) -> list[Message]:
    group: list[Message] = []
    while len(group) < limit and (message := source.retrieve()) is not None:
        group.append(message)
    return group


def _store(group: Sequence[Message], source: Store, target: Store) -> tuple[list[Message], int]:
    """The messages that are durable in the target now, and how many of them it did not know."""
    ids = {message.id for message in group}
    known = len(target.browse(len(ids), ids=ids))
    try:
        target.store_many([_as_new(message) for message in group])
    except UnstorableContentError:
        return _store_each(group, source, target)
    return list(group), len(ids) - known


def _store_each(group: Sequence[Message], source: Store, target: Store) -> tuple[list[Message], int]:
    """One by one, because one of them cannot be stored and must not hold up the others."""
    stored, new = [], 0
    for message in group:
        known = len(target.browse(1, ids=[message.id]))
        try:
            target.store(_as_new(message))
        except UnstorableContentError as error:
            if DEAD_LETTER not in source.features:
                raise
            log.warning("message %s of store %r cannot be taken in: %s", message.id, source.name, error)
            source.dead_letter(message, reason=UNREADABLE, description=str(error))
        else:
            stored.append(message)
            new += 1 - known
    return stored, new


def _as_new(message: Message) -> Message:
    """The message as the target is to hold it, without what the source wrote on it for this delivery."""
    return replace(message, sequence_number=None, lock_token=None, delivery_count=0, scheduled_at=None, state=AVAILABLE)


def _acknowledge(stored: Sequence[Message], source: Store) -> bool:
    """Whether the source can still be reached. What it could not be told comes again, and the target knows it."""
    for message in stored:
        try:
            source.acknowledge(message)
        except (LeaseLostError, NotInFlightError) as error:
            log.warning("message %s was taken in and will come again: %s", message.id, error)
        except StoreUnavailableError as error:
            log.warning("store %r went away after its messages were taken in, they come again: %s", source.name, error)
            return False
    return True
