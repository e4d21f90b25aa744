"""The delivery ledger: one row per (message, destination flow), written as deliveries happen.

A message is known by its `MessageRef`. Its id may come again once the store has forgotten it, while the earlier message
of that id still waits after its failure; neither says anything of the other.

What is done stays done: no later record turns a delivered row back. Every record is fenced: the step of the batch must
still belong to the writer, so that a process that was taken for dead stops at its next chunk.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from homing.message import MessageRef

# States of a ledger row.
DELIVERED = "delivered"
FILTERED = "filtered"  # this destination's own rule said no
DROPPED = "dropped"  # the author's rule dropped the message
PROCESSED = "processed"  # the source flow has succeeded, after it had failed before
FAILED = "failed"
DONE_STATES = frozenset({DELIVERED, FILTERED, DROPPED, PROCESSED})

#: The flow name under which the source flow's outcome is kept.
SOURCE_FLOW = ""

#: The steps of this name are parts of one: a Spark task's turn. They are not closed one by one.
PART = "part/"


class Entry(NamedTuple):
    """What happened to one message in one flow. A tuple, because every delivery makes some of them."""

    ref: MessageRef
    flow: str
    state: str
    destination: str = ""
    attempts: int = 1
    result: Any = None
    error: Mapping[str, Any] | None = None
    snapshot: Mapping[str, Any] | None = None
    #: The batch the message belongs to, which a replay does not change.
    batch_id: str = ""
    #: How many times it was delivered; more than one is a duplicate.
    deliveries: int = 0
    #: When it happened last, in Unix nanoseconds; 0 for when it is recorded. An attempt that is recorded a second time,
    #: because it was not known whether the first was committed, is known by it and counted once.
    at: int = 0
    #: The run that recorded it last. Told by the ledger, not to it.
    run_id: str = ""

    @property
    def message_id(self) -> str:
        return self.ref.id

    @property
    def done(self) -> bool:
        return self.state in DONE_STATES


#: The entries of some messages: which message -> flow -> entry.
LedgerEntries = dict[MessageRef, dict[str, Entry]]


@dataclass(frozen=True)
class Fence:
    """The right to record for one step of one run.

    `crashed` says that the step's last owner did not finish it; `suspect` is what it was working on then.
    """

    run_id: str
    step: str
    owner: str
    crashed: bool = False
    suspect: str | None = None


class Tombstone(NamedTuple):
    """A message that was forgotten; `done` is None while that goes on, or was interrupted."""

    digest: str
    reason: str
    asked: datetime
    done: datetime | None


def digest(ref: MessageRef) -> str:
    """Tells whether a message with a known reference is the one meant, and nothing else."""
    return hashlib.sha256(f"{ref.table_id}-{ref.sequence}/{ref.id}".encode()).hexdigest()


class Tombstones(ABC):
    """Which messages a person had removed, when and why, without anything of the messages. Thread-safe."""

    @abstractmethod
    def begin(self, refs: Sequence[MessageRef], reason: str) -> None:
        """Notes that these messages are being forgotten. One that was before keeps its time and reason."""

    @abstractmethod
    def finish(self, refs: Sequence[MessageRef]) -> None:
        """Nothing of these messages is left."""

    @abstractmethod
    def unfinished(self, message_ids: Collection[str]) -> list[MessageRef]:
        """The messages of these ids whose erasure was begun and not finished."""

    @abstractmethod
    def all(self) -> list[Tombstone]:
        """Every one, in the order in which they were asked for."""


class Ledger(ABC):
    """Thread-safe. Every method raises StoreUnavailableError when the database is away."""

    #: The messages that a person had removed from this ledger and its stores.
    tombstones: Tombstones

    @abstractmethod
    def open_step(self, run_id: str, step: str, lease: float) -> Fence:
        """Takes the step over, for `lease` seconds; the owner before can record no more."""

    @abstractmethod
    def renew_step(self, fence: Fence, lease: float) -> None:
        """Keeps the step for `lease` more seconds; raises LeaseLostError when another process took it over."""

    @abstractmethod
    def is_open(self, run_id: str, step: str) -> bool:
        """Whether a process has taken this step over, may still record, and has not finished it."""

    @abstractmethod
    def record(self, fence: Fence, entries: Iterable[Entry]) -> None:
        """Writes these rows, all or none; raises LeaseLostError, and writes nothing, when the fence is down."""

    @abstractmethod
    def suspect(self, fence: Fence, suspect: str | None, entries: Iterable[Entry] = ()) -> None:
        """Records, and notes in the same transaction what the writer takes in hand next: if it dies of it, the next
        one to open the step is told."""

    @abstractmethod
    def close_step(self, fence: Fence) -> None:
        """The step came to its end."""

    @abstractmethod
    def publish(self, fence: Fence, files: Mapping[str, str]) -> None:
        """Notes what this step leaves in the work directory, each file with its digest, in the place of what was noted
        for the run before; raises LeaseLostError, and notes nothing, when the fence is down."""

    @abstractmethod
    def published(self, run_id: str) -> dict[str, str] | None:
        """What was noted last for the run: name -> digest, of none, too; None when nothing was."""

    @abstractmethod
    def known(self, message_ids: Iterable[str]) -> LedgerEntries:
        """All rows of the messages of these ids."""

    def entries(self, message_ids: Iterable[str]) -> dict[str, dict[str, Entry]]:
        """The rows of the last message of each of these ids, for people to look at: message id -> flow -> entry."""
        known = self.known(message_ids)
        return {ref.id: known[ref] for ref in in_order(known)}

    @abstractmethod
    def unfinished(self, batch_id: str) -> list[MessageRef]:
        """The batch's messages that have a failed row."""

    @abstractmethod
    def of_batch(self, batch_id: str, limit: int) -> list[MessageRef]:
        """The batch's messages that have any row, `limit` at most."""

    @abstractmethod
    def left_open(self, run_id: str) -> list[str]:
        """The steps of this run that did not come to their end, if only because they still run."""

    @abstractmethod
    def close_steps(self, run_id: str) -> None:
        """Ends the right of every step of this run to record: whatever still runs for it stops at its next chunk. What
        was published for the run is forgotten."""

    # -- removing ----------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def table_name(self) -> str:
        """Where the records are, results and snapshots with them."""

    @abstractmethod
    def done_before(self, seconds: float) -> Iterator[list[MessageRef]]:
        """The messages of which all rows are done, and were recorded so many seconds ago or earlier; the oldest first,
        a portion at a time. Where else there is something of them is for the caller to find out."""

    @abstractmethod
    def remove(self, refs: Collection[MessageRef]) -> int:
        """Removes what the ledger has of these messages, in one transaction; how many rows."""

    @abstractmethod
    def busy_until(self, run_ids: Collection[str]) -> datetime | None:
        """When the last step of these runs that a process may still record for ends; None for now."""


def in_order(known: LedgerEntries) -> list[MessageRef]:
    """These messages in the order in which they came, those of the table that was written of last at the end."""
    latest: dict[str, int] = {}
    for ref, flows in known.items():
        latest[ref.table_id] = max(latest.get(ref.table_id, 0), *(entry.at for entry in flows.values()))
    return sorted(known, key=lambda ref: (latest[ref.table_id], ref.sequence))
