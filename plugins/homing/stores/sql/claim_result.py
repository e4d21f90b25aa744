"""The result of a claim."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from homing.errors import UnreadableMessageError
from homing.message import Message
from homing.row import READ, read
from homing.store import BatchLease
from homing.stores.sql.rows import FRESH_ROW, read_fresh

_TOKEN = READ.index("lock_token")


@dataclass
class Claimed:
    """What a claim leased: messages, or only their number; and the token that fences their lease."""

    token: str
    #: Rows that are not made into messages yet: values of READ or FRESH, as they were before they were leased.
    rows: list[tuple[Any, ...]] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    #: Rows that cannot be decoded, and why. They are leased like the others.
    unreadable: list[tuple[tuple[Any, ...], str]] = field(default_factory=list)
    size: int = 0
    #: How many of the messages leased the batch had claimed before.
    again: int = 0

    def lease(self, batch_id: str) -> BatchLease | None:
        return BatchLease(batch_id, self.token, self.size) if self.size else None

    def read(self) -> None:
        for row in self.rows:
            try:
                self.messages.append(self._message(row))
            except UnreadableMessageError as error:
                self.unreadable.append((row, str(error)))
        self.rows = []

    def _message(self, row: tuple[Any, ...]) -> Message:
        if len(row) == FRESH_ROW:
            return read_fresh(row, self.token)
        return read(row, self.token, 0 if row[_TOKEN] == self.token else 1)
