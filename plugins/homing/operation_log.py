"""The record of operations: who changed what, when and why, beside a store; it is only ever added to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from datetime import datetime
from typing import Any

#: What is known of an operation: it began, or was asked for and allowed or refused by another person, and it ended.
BEGUN, ASKED, APPROVED, REJECTED = "begun", "asked", "approved", "rejected"
DONE, FAILED = "done", "failed"


@dataclass(frozen=True)
class OperationEvent:
    """One row. `operation` is the same in all rows about one operation, and `event` says which of them this is."""

    operation: str
    event: str
    what: str
    who: str
    via: str
    why: str | None = None
    #: How many messages it is about, where that is known.
    messages: int | None = None
    #: Which messages, by their ids or by what they have in common: never their contents.
    selection: Any = None
    outcome: Any = None
    #: When it was written down, by the database's clock; None until it is.
    at: datetime | None = None


class OperationLog(ABC):
    """The events of one store, and of the pipeline that works on it."""

    @abstractmethod
    def append(self, event: OperationEvent) -> bool:
        """Writes this down; False, and nothing is written, where the operation has such an event already."""

    @abstractmethod
    def append_within(self, event: OperationEvent, most: int, window: float, otherwise: str | None = None) -> bool:
        """Writes down that this operation begins, if it is about no more messages than are left of `most`: all that
        began in the last `window` seconds count, of its kind. Whether it may begin.

        What has begun under this id before, or was approved, may. Where it may not, the event `otherwise` is written.
        """

    @abstractmethod
    def latest(self, what: str) -> OperationEvent | None:
        """The last that was written down of this kind."""

    @abstractmethod
    def of(self, operation: str) -> list[OperationEvent]:
        """All that is known of one operation, in order."""

    @abstractmethod
    def since(self, when: datetime | None = None, *, limit: int | None = None) -> list[OperationEvent]:
        """All events from then on, or the last `limit` of them, in order."""
