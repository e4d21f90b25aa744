"""What is given to `store()`, made into a Message that can be stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from homing.errors import UnstorableContentError
from homing.ids import ordered_ids
from homing.json_values import is_unicode
from homing.message import Headers, Message, encode_headers

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
            raise UnstorableContentError(f"a message's {name} is a text, not a {type(text).__name__}")
        if text and not is_unicode(text):
            raise UnstorableContentError(f"{name} contains a lone surrogate, which is not a character")
    if not message.id or len(message.id) > MAX_ID:
        raise UnstorableContentError(f"a message id has 1 to {MAX_ID} characters, not {len(message.id or '')}")
    for name, kind in _KINDS.items():
        value = getattr(message, name)
        if value is not None and not isinstance(value, kind):
            raise UnstorableContentError(f"a message's {name} is a {kind.__name__}, not a {type(value).__name__}")
    if type(message.priority) is not int:
        raise UnstorableContentError(f"a priority is a whole number, not {message.priority!r:.60}")
    if message.scheduled_at is not None and message.scheduled_at.tzinfo is None:
        raise UnstorableContentError(f"times are aware: {message.scheduled_at} has no time zone")


def written_texts(message: Message, body: str) -> dict[str, str | None]:
    """All texts of a message as they are written down, its content as `body`: what a SizeLimit looks at."""
    texts: dict[str, str | None] = {name: getattr(message, name) for name in _TEXTS}
    return {**texts, "message": body, "headers": encode_headers(message.headers)}
