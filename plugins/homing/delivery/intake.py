"""Intake: moves messages from a broker, the source, into the store of a pipeline, the target.

A broker's lease ends with the connection that holds it, so the tasks of a run cannot hand it on. Therefore a message is
written to the target first, and acknowledged at the source only when it is committed there. If a process dies in
between, the source hands the message out again. The target knows its id, and does not store it twice.

Brokers let different messages have the same id. If the target holds another message under that id, the new one is
stored under an id made from its content, so that it is recognised when it comes again. If even that id belongs to
another message, the new one gets a random id.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from homing import message as m
from homing.errors import (
    LeaseLostError,
    NotInFlightError,
    SourceUnavailableError,
    StoreError,
    StoreUnavailableError,
    TooLargeError,
    UnstorableContentError,
)
from homing.ids import secret_hex
from homing.message import AVAILABLE, Message
from homing.portions import MOST_BYTES
from homing.size_limit import weight
from homing.store import DEAD_LETTER, TOO_LARGE, UNREADABLE, Store
from homing.stores.validation import MAX_ID

log = logging.getLogger(__name__)

# What people write on a message, apart from its headers.
_WRITTEN = ("content_type", "correlation_id", "session_id", "partition_key", "subject", "to", "reply_to")
_GROUP = 100  # messages in one commit: few enough to be committed well within the source's lease
_PAUSES = (0.2, 0.5, 1.0, 2.0)  # seconds for which messages in hand wait for the target: well within that lease, too

_MARK = 16  # characters by which an id differs that another message has already
_ROOM = MAX_ID - _MARK - 1  # characters of the id itself beside it


def take_in(source: Store, target: Store, limit: int) -> int:
    """Moves up to `limit` messages that are due at the source into the target. Returns how many were new to the target.

    `target` needs the abilities bulk, browse and deduplication. A message that it refuses is dead-lettered at the
    source, with the refusal as its reason. While the target takes nothing, nothing is taken from the source: an outage
    of the target uses up no deliveries of the source.

    Raises SourceUnavailableError when the source cannot be reached, and what the target raises: nothing is lost then,
    the next call goes on.
    """
    taken = new = 0
    while taken < limit:
        target.require_writable()
        group = _retrieve(source, min(_GROUP, limit - taken))
        if not group:
            break
        taken += len(group)
        stored, fresh = _store_or_release(group, source, target)
        new += fresh
        if not _acknowledge(stored, source):
            break
    if taken:
        log.info("took in %d messages of store %r, %d of them new to store %r", taken, source.name, new, target.name)
    return new


def _retrieve(source: Store, limit: int) -> list[Message]:
    """Up to so many messages. What keeps the source from handing out one more is raised by the next call, once those
    before it are stored: the source would count their leases, should they run out, as crashes of their consumer."""
    group: list[Message] = []
    bytes_held = 0
    try:
        while len(group) < limit and bytes_held < MOST_BYTES and (message := source.retrieve()) is not None:
            group.append(message)
            bytes_held += weight(message)
    except StoreError as error:
        if not group and isinstance(error, StoreUnavailableError):
            raise SourceUnavailableError(f"cannot take messages in: {error}") from error
        if not group:
            raise
        log.warning("store %r handed out %d messages and failed at the next: %s", source.name, len(group), error)
    except BaseException:
        _release(group, source)
        raise
    return group


def _store_or_release(group: Sequence[Message], source: Store, target: Store) -> tuple[list[Message], int]:
    """As `_store`, tried again while the target is away for a moment. In the end the messages are released: had they
    to wait until their leases run out, the source would count that as a crash of their consumer."""
    try:
        for pause in _PAUSES:
            try:
                return _store(group, source, target)
            except StoreUnavailableError as error:
                log.warning("store %r is away, %d messages wait for it: %s", target.name, len(group), error)
                time.sleep(pause)
        return _store(group, source, target)
    except BaseException:
        _release(group, source)
        raise


def _release(group: Sequence[Message], source: Store) -> None:
    for message in group:
        try:
            source.acknowledge(message, success=False)
        except NotInFlightError:
            continue  # dead-lettered on the way
        except StoreError as error:
            log.warning("message %s of store %r could not be released: %s", message.id, source.name, error)
            return


def _store(group: Sequence[Message], source: Store, target: Store) -> tuple[list[Message], int]:
    """The messages that are durable in the target now, and how many of them it did not know."""
    stored, others, new = _store_named([(message, message.id) for message in group], source, target)
    if others:
        log.warning(
            "%d messages of store %r reuse an id that store %r has with other content, first %s; stored as <id>~<hash>",
            len(others), source.name, target.name, others[0].id,
        )  # fmt: skip
        more, others, fresh = _store_named([(message, _other_id(message)) for message in others], source, target)
        stored, new = stored + more, new + fresh
    if others:
        # A producer can compute that id too and may have sent something else under it, but cannot guess a random
        # one, as long as it is not of the generator whose numbers are in ids that a producer sees.
        log.warning(
            "both ids of message %s of store %r are taken by other content; stored under a random id",
            others[0].id,
            source.name,
        )
        written, fresh = _write([(message, _beside(message, secret_hex(16))) for message in others], source, target)
        stored, new = stored + [message for message, _ in written], new + fresh
    return stored, new


def _store_named(
    group: Sequence[tuple[Message, str]], source: Store, target: Store
) -> tuple[list[Message], list[Message], int]:
    """Stores these messages by these ids: those that the target has, those for which it has another one, and how many
    of the ids it did not know."""
    written, new = _write(group, source, target)
    # Looked at afterwards, because another intake may have stored one of the same id in the meantime.
    ids = {message_id for _, message_id in written}
    held = {(message.id, _fingerprint(message)) for message in _browse(target, ids)}
    stored, others = list[Message](), list[Message]()
    for message, message_id in written:
        (stored if (message_id, _fingerprint(message)) in held else others).append(message)
    return stored, others, new


def _other_id(message: Message) -> str:
    """Returns an id for a message whose own id belongs to another message. When it comes again, it gets the same id."""
    known_by = _fingerprint(message)
    if len(message.id) > _ROOM:  # it is cut, and what is cut off tells it from others
        known_by = hashlib.sha256(f"{known_by}/{message.id}".encode()).hexdigest()
    return _beside(message, known_by[:_MARK])


def _beside(message: Message, mark: str) -> str:
    return f"{message.id[:_ROOM]}~{mark}"


def _write(
    group: Sequence[tuple[Message, str]], source: Store, target: Store
) -> tuple[Sequence[tuple[Message, str]], int]:
    """Those of the messages that the target took, or knows, by these ids, and how many of the ids it did not know."""
    known = {message.id for message in _browse(target, {message_id for _, message_id in group})}
    written = _write_fitting(group, source, target)
    return written, len({message_id for _, message_id in written} - known)


def _write_fitting(group: Sequence[tuple[Message, str]], source: Store, target: Store) -> Sequence[tuple[Message, str]]:
    """Those that the target took or knows. What it can never store is dead-lettered at the source, alone: halves of
    the group are tried apart until it is found, so that it holds up no other."""
    try:
        target.store_many([_as_new(message, message_id, target) for message, message_id in group])
    except UnstorableContentError as error:
        if DEAD_LETTER not in source.features:
            raise
        if len(group) == 1:
            _dead_letter(group[0][0], source, error)
            return []
        half = len(group) // 2
        return [*_write_fitting(group[:half], source, target), *_write_fitting(group[half:], source, target)]
    return group


def _dead_letter(message: Message, source: Store, error: UnstorableContentError) -> None:
    log.warning("message %s of store %r cannot be taken in: %s", message.id, source.name, error)
    reason = TOO_LARGE if isinstance(error, TooLargeError) else UNREADABLE
    try:
        source.dead_letter(message, reason=reason, description=str(error))
    except NotInFlightError:
        pass  # it was, before the target went away for a moment
    except (LeaseLostError, StoreUnavailableError) as lost:
        log.warning("message %s was not dead-lettered and will come again: %s", message.id, lost)


def _browse(target: Store, ids: set[str]) -> Iterator[Message]:
    """All that the target has under these ids: several under one, where finished messages are archived."""
    # As they were stored: what plain SQL wrote into the application's columns since makes no other message of one.
    after, limit = 0, len(ids) + 1
    while ids and (page := target.browse_written(limit, ids=ids, after=after)):
        yield from page
        after = page[-1].sequence_number or 0
        if len(page) < limit:
            return


def _fingerprint(message: Message) -> str:
    """Returns a digest of all that people wrote on a message, except its id. It tells whether a message comes again."""
    said = [
        *m.encode(message.content),
        m.encode_headers(message.headers),
        *(getattr(message, name) for name in _WRITTEN),
    ]
    return hashlib.sha256(m.encode_json(said).encode()).hexdigest()


def _as_new(message: Message, message_id: str, target: Store) -> Message:
    """Returns the message as the target is to hold it, without what the source wrote on it for this delivery.

    Raises TooLargeError. It checks the size here, because the target lets dead letters and failure records be larger,
    and any sender can write on a message that it is one.
    """
    most, size = target.max_message_bytes, weight(message)
    if most is not None and size > most:
        raise TooLargeError(
            f"message {message.id} is too large for store {target.name!r}: its content and headers have {size} bytes, "
            f"and max_message_bytes is {most}"
        )
    return replace(
        message,
        id=message_id,
        sequence_number=None,
        lock_token=None,
        delivery_count=0,
        scheduled_at=None,
        dead_letter_reason=None,
        dead_letter_description=None,
        dead_letter_source=None,
        state=AVAILABLE,
    )


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
