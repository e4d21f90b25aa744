"""What is given to `store()`, made into a Message that can be stored."""

from __future__ import annotations

import secrets
import time
from dataclasses import replace
from datetime import datetime
from typing import Any

from homing.errors import UnstorableContentError
from homing.message import Headers, Message

MAX_ID = 255


def as_message(
    content: Any, id: str | None = None, headers: Headers | None = None, scheduled_at: datetime | None = None
) -> Message:
    """A content, or a whole Message, with what was given beside it; raises UnstorableContentError."""
    given: dict[str, Any] = {"id": id, "headers": headers, "scheduled_at": scheduled_at}
    given = {key: value for key, value in given.items() if value is not None}
    message = content if isinstance(content, Message) else Message(id or new_id(), content)
    message = replace(message, **given) if given else message
    if not message.id or len(message.id) > MAX_ID:
        raise UnstorableContentError(f"a message id has 1 to {MAX_ID} characters, not {len(message.id)}")
    if message.scheduled_at is not None and message.scheduled_at.tzinfo is None:
        raise UnstorableContentError(f"times are aware: {message.scheduled_at} has no time zone")
    return message


def new_id() -> str:
    """Unique, and rising with time."""
    return f"{time.time_ns():016x}-{secrets.token_hex(8)}"
