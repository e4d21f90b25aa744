"""What a claim came to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from homing.errors import UnreadableMessageError
from homing.message import Message
from homing.store import BatchLease
from homing.stores.sql import rows

_TOKEN = rows.READ.index("lock_token")


@dataclass
class Claimed:
    """What was leased: messages, or nothing but their number, and the token that fences them."""

    token: str
    messages: list[Message] = field(default_factory=list)
    #: Rows that cannot be decoded, and why. They are leased like the others.
    unreadable: list[tuple[tuple[Any, ...], str]] = field(default_factory=list)
    size: int = 0
    #: How many of them the batch had before.
    again: int = 0

    def lease(self, batch_id: str) -> BatchLease | None:
        return BatchLease(batch_id, self.token, self.size) if self.size else None

    def read(self, leased: Iterable[tuple[Any, ...]]) -> None:
        """Adds these rows, values of READ or PLAIN as they were before they were leased."""
        for row in leased:
            try:
                self.messages.append(rows.read(row, self.token, 0 if row[_TOKEN] == self.token else 1))
            except UnreadableMessageError as error:
                self.unreadable.append((row, str(error)))
