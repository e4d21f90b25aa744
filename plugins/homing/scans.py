"""Reading a store part by part, by ranges of sequence numbers, without claiming anything."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from homing.store import BatchLease

#: Which messages of a store: those not finished, those kept aside as dead, or every one it knows.
WAITING = "waiting"
DEAD = "dead"
ALL = "all"

#: The last sequence number there can be.
LAST = 2**63 - 1
#: Seconds for which transactions that write right now are waited for, because they may still bring a lower number. Most
#: take milliseconds; others would hold the reader up.
PATIENCE = 1.0


@dataclass(frozen=True)
class Condition:
    """A column compared with a value; `operator` is one of =, <, <=, >, >=, in, is null, is not null."""

    column: str
    operator: str
    value: Any = None


def held_by(lease: BatchLease) -> tuple[Condition, ...]:
    """Keeps to what this lease still holds."""
    return (
        Condition("batch_id", "=", lease.batch_id),
        Condition("lock_token", "=", lease.lock_token),
        Condition("time_next", "is not null"),
    )


class Scans(ABC):
    """Reads by ranges (after, upto] of sequence numbers. No side effect."""

    @abstractmethod
    def pages(
        self,
        columns: Sequence[str],
        after: int,
        upto: int,
        *,
        which: str = ALL,
        conditions: Sequence[Condition] = (),
        page: int = 1000,
    ) -> Iterator[Sequence[tuple[Any, ...]]]:
        """The values of these columns, `sequence` the first of them, row by row and in order of it."""

    @abstractmethod
    def message_pages(
        self, after: int, upto: int, *, which: str = ALL, conditions: Sequence[Condition] = (), page: int = 1000
    ) -> Iterator[Sequence[tuple[Any, ...]]]:
        """The values of READ, `table_id` and `batch_id`, likewise; as long as messages have no more, those of PLAIN,
        None, and these two: columns that are empty cost something, too, and mostly they are. A page is at most
        a portion."""

    @abstractmethod
    def span(self, which: str = ALL, conditions: Sequence[Condition] = ()) -> tuple[int, int] | None:
        """The first and the last sequence number of these messages; None when there are none."""

    @abstractmethod
    def newest(self, after: int, *, limit: int | None = None, patience: float = PATIENCE) -> int:
        """The last sequence number above `after`, or the `limit`th; `after` itself when there is none.

        No lower number appears later: where an open transaction may still bring one, only those before it count.
        """

    @abstractmethod
    def batch_ranges(self, held: BatchLease, parts: int) -> list[tuple[int, int]]:
        """Cuts a batch into at most `parts` ranges (after, upto] of sequence numbers, of about the same size."""
