"""What is given to a store, checked in one way for all of them: a content or Message, a claim, outcomes, partitions."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from homing.constraints import AtLeastOne, Positive, check
from homing.errors import ConfigurationError, UnstorableContentError
from homing.ids import ordered_ids
from homing.json_values import is_unicode
from homing.message import ACKNOWLEDGED, DEAD, Headers, Message, encode_headers

MAX_ID = 255
_TEXTS = (
    "id", "content_type", "correlation_id", "session_id", "partition_key", "subject", "to", "reply_to",
    "dead_letter_reason", "dead_letter_description", "dead_letter_source",
)  # fmt: skip
_KINDS: dict[str, type] = {"headers": Mapping, "time_to_live": timedelta, "scheduled_at": datetime}


def as_message(
    content: Any, id: str | None = None, headers: Headers | None = None, scheduled_at: datetime | None = None
) -> Message:
    """A content, or a whole Message, with what was given beside it; raises UnstorableContentError."""
    given: dict[str, Any] = {"id": id, "headers": headers, "scheduled_at": scheduled_at}
    given = {key: value for key, value in given.items() if value is not None}
    message = content if isinstance(content, Message) else Message(id or next(ordered_ids()), content)
    message = replace(message, **given) if given else message
    refuse_unfit(message)
    return message


def refuse_unfit(message: Message) -> None:
    """Raises UnstorableContentError for a message on which something is written that is not of its kind."""
    for name in _TEXTS:
        text = getattr(message, name)
        if text is not None and type(text) is not str:
            raise UnstorableContentError(f"{name} of a message must be a text, got a {type(text).__name__}")
        if text and not is_unicode(text):
            raise UnstorableContentError(f"{name} contains a lone surrogate, which is not a character")
    if not message.id or len(message.id) > MAX_ID:
        raise UnstorableContentError(f"a message id must have 1 to {MAX_ID} characters, got {len(message.id or '')}")
    for name, kind in _KINDS.items():
        value = getattr(message, name)
        if value is not None and not isinstance(value, kind):
            raise UnstorableContentError(f"{name} of a message must be a {kind.__name__}, got a {type(value).__name__}")
    if type(message.priority) is not int:
        raise UnstorableContentError(f"priority of a message must be an integer, got {message.priority!r:.60}")
    if message.scheduled_at is not None and message.scheduled_at.tzinfo is None:
        raise UnstorableContentError(f"{message.scheduled_at} has no time zone: give an aware datetime")


def written_texts(message: Message, body: str) -> dict[str, str | None]:
    """All texts of a message as they are written down, its content as `body`: what a SizeLimit looks at."""
    texts: dict[str, str | None] = {name: getattr(message, name) for name in _TEXTS}
    return {**texts, "message": body, "headers": encode_headers(message.headers)}


def check_claim(limit: int, lease: float | None) -> None:
    """Raises ConfigurationError for a claim of no messages, or for no time."""
    if limit < 1 or (lease is not None and not lease > 0):
        check("limit", limit, AtLeastOne)
        check("lease", lease, Positive)


def outcomes_of(messages: Sequence[Message], success: bool | Sequence[bool]) -> list[bool]:
    """The outcome of each of these messages; raises ConfigurationError where there is not one for each."""
    outcomes = [success] * len(messages) if isinstance(success, bool) else list(success)
    if len(outcomes) != len(messages):
        raise ConfigurationError(f"{len(messages)} messages need {len(messages)} outcomes, got {len(outcomes)}")
    return outcomes


def check_purged(state: str) -> None:
    """Raises ConfigurationError for a state whose messages are not purged."""
    if state not in (ACKNOWLEDGED, DEAD):
        raise ConfigurationError(f"only acknowledged and dead messages can be purged, got {state!r}")


def check_partitions(partitions: Collection[int], known: int, store: str) -> None:
    """Raises ConfigurationError for a partition that a store with `known` partitions does not have."""
    if not known or not all(0 <= number < known for number in partitions):
        raise ConfigurationError(
            f"store {store!r} was opened with partitions={known}; it has no partitions {sorted(partitions)}"
        )


def partition_of(message: Message, partitions: int) -> int:
    """The partition that a message belongs to, for all processes and for ever the same."""
    return partition_of_key(message.partition_key or message.session_id or message.id, partitions)


def partition_of_key(key: str, partitions: int) -> int:
    """As `partition_of`, of a message that is known by this key."""
    return zlib.crc32(key.encode()) % partitions
