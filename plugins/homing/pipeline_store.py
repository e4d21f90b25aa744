"""What a pipeline needs of a store beyond the Store contract: the ability PIPELINE.

Batches that outlive the process which claimed them, kept by a batch id and a lease; the records that stand beside the
messages (the ledger, the operations); and looking at everything without claiming. `store.features` says whether a store
has it, and `is_pipeline_store` tells the type checker, too. A batch is handed over as rows: see `row`.

What is done with a batch is fenced by its lease: LeaseLostError is raised, and nothing changed, once it was lost.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeGuard

from homing.errors import TooLargeError
from homing.ledger import Ledger
from homing.message import Message, MessageRef
from homing.operation_log import OperationLog
from homing.scans import Scans
from homing.store import PIPELINE, BatchLease, Store

#: What each of those who work with a store may do in its database: see `StoreAccess.grants`.
PRODUCER, CONSUMER, OPERATOR, AUDITOR = "producer", "consumer", "operator", "auditor"
ROLES = (PRODUCER, CONSUMER, OPERATOR, AUDITOR)


class StoreProperties(Protocol):
    """How a store behaves, as far as a pipeline asks; times in seconds, 0 for never."""

    @property
    def max_deliveries(self) -> int: ...
    @property
    def purge_after(self) -> float: ...
    @property
    def ledger_retention(self) -> float: ...


class PipelineStore(Store):
    """A store that a pipeline can work on."""

    #: Looks at the messages without claiming them.
    view: StoreView
    #: Removes messages for good.
    erasure: Erasure
    #: Its tables, and who may do what with them.
    access: StoreAccess

    @abstractmethod
    def has_due(self, *, partitions: Collection[int] | None = None) -> bool:
        """Whether a consumer could claim a message now; it can always tell."""

    # -- a batch -----------------------------------------------------------------------------------------------

    @abstractmethod
    def lease_batch(
        self,
        limit: int,
        *,
        batch_id: str,
        lease: float,
        ids: Collection[str] | None = None,
        partitions: Collection[int] | None = None,
    ) -> BatchLease | None:
        """Claims like `claim`, but leaves the contents where they are; None when there is nothing to claim.

        With `ids`, claims those of these messages that no other batch holds, dead ones included. What the batch already
        holds is kept, and its lease made to last `lease` seconds from now. What has an id that is not text is given
        another and kept aside.
        """

    @abstractmethod
    def knows_batch(self, batch_id: str) -> bool:
        """Whether messages were claimed under this batch id, be they finished by now."""

    @abstractmethod
    def held_batch(self, batch_id: str) -> BatchLease | None:
        """The batch's lease as it stands, unless it ran out."""

    @abstractmethod
    def batch_rows(
        self,
        held: BatchLease,
        *,
        after: int = 0,
        upto: int | None = None,
        page: int = 1000,
        ids: Collection[str] | None = None,
    ) -> Iterator[dict[str, Any]]:
        """The batch's rows, in order of sequence, or those of these ids; read a portion at a time, and nothing is
        changed by it."""

    @abstractmethod
    def settle_batch(self, held: BatchLease, ids: Collection[str], success: bool = True) -> None:
        """Acknowledges or releases these messages of the batch, all or none."""

    @abstractmethod
    def dead_letter_batch(self, held: BatchLease, ids: Collection[str], reason: str, description: str) -> None:
        """Keeps these messages of the batch aside as dead, where they are, all or none."""

    @abstractmethod
    def forget_batch(self, held: BatchLease, ids: Collection[str]) -> None:
        """Removes these messages of the batch, all or none, with their ids: an equal id may be stored again."""

    @abstractmethod
    def count_crash(self, held: BatchLease, ids: Collection[str]) -> None:
        """Notes that the process that handled these messages of the batch died, as when a lease runs out. Changes
        nothing else, and nothing at all of what is no longer held."""

    # -- without a batch ---------------------------------------------------------------------------------------

    @abstractmethod
    def dead_messages(self, skip: int = 0) -> list[dict[str, Any]]:
        """A portion of the rows this store keeps aside as dead, with their reasons, the oldest first, behind `skip`."""

    @abstractmethod
    def forget_finished(self, ids: Collection[str]) -> None:
        """Removes what is acknowledged of these messages, with their ids: an equal id may be stored again."""

    @abstractmethod
    def refusal(self, message: Message) -> TooLargeError | None:
        """Why this store would not take a message of this size; None when it would. Raises UnstorableContentError for
        one that it would not take for another reason."""

    # -- what stands beside the messages -----------------------------------------------------------------------

    @property
    @abstractmethod
    def place(self) -> tuple[str, str]:
        """Where the messages lie, the database and the table: equal for two stores that are the same. Holds no
        password."""

    @property
    @abstractmethod
    def properties(self) -> StoreProperties:
        """How the store behaves now."""

    @abstractmethod
    def failures(self) -> PipelineStore:
        """The store beside this one where a pipeline's failed messages wait for their replay.

        From now on a session waits here, in claims and in `has_due`, while one of its messages waits there.
        """

    @abstractmethod
    def sibling(self, name: str) -> PipelineStore:
        """Another store in the same database."""

    @abstractmethod
    def ledger(self) -> Ledger:
        """The delivery ledger kept beside this store."""

    @abstractmethod
    def operations(self) -> OperationLog:
        """What people and DAGs did to this store and its pipeline."""

    @abstractmethod
    def scans(self) -> Scans:
        """Reads the messages part by part, without claiming them."""


class StoreView(ABC):
    """Which messages a store has. Changes nothing."""

    @abstractmethod
    def states(self, ids: Collection[str] | None = None) -> Iterator[tuple[str, str, MessageRef]]:
        """(id, state, reference) of all messages the store knows, or of these ids, finished ones too, in order."""

    @abstractmethod
    def present(self, ids: Collection[str]) -> set[str]:
        """Those of these messages that are here and not acknowledged."""

    @abstractmethod
    def look(self, ids: Collection[str] | None = None) -> Iterator[Message]:
        """All messages that are not acknowledged, as `browse` shows them, or those of these ids; read a portion at a
        time, so that it does not matter how large they are."""

    @abstractmethod
    def batches_of(self, ids: Collection[str]) -> dict[str, str]:
        """The batch each of these messages was claimed in last; those that never were are left out."""

    @abstractmethod
    def expired_batches(self, seconds: float) -> list[str]:
        """The batches whose lease ran out this long ago, with messages that have not been claimed since."""

    @abstractmethod
    def overdue(self, seconds: float) -> list[str]:
        """All messages that have been due for this long and not been claimed since."""


class Erasure(ABC):
    """Removes messages for good, by their numbers and ids: a person's act, after which nothing delivers them."""

    @abstractmethod
    def require_free(self, ids: Mapping[int, str]) -> None:
        """Raises StillHeldError, which says until when, while one of these messages is leased."""

    @abstractmethod
    def remove(self, ids: Mapping[int, str]) -> int:
        """Removes these messages, finished or not, with all this store has of them; how many. Raises StillHeldError,
        and removes none of them, while one of them is leased."""

    @abstractmethod
    def tables(self) -> list[str]:
        """The names of the tables that hold the store's messages."""

    @abstractmethod
    def scrub(self, tables: Sequence[str]) -> str | None:
        """Has the database let go of what was removed from these tables of it, as far as a client can; what is left to
        do, in words. Raises StoreUnavailableError while others keep it from that."""


class StoreAccess(ABC):
    """The tables of a store, and who may do what with them; `pipeline` says that it is one's, and has a ledger beside
    it."""

    @abstractmethod
    def prepare(self, *, pipeline: bool = False) -> list[str]:
        """Makes the tables, and what they lack; the names of those that were not as they should be."""

    @abstractmethod
    def plan(self, *, pipeline: bool = False) -> dict[str, list[str]]:
        """What `prepare` would do, table by table, in SQL as far as they are made anew. Changes nothing."""

    @abstractmethod
    def incomplete(self, *, pipeline: bool = False) -> list[str]:
        """The tables that `prepare` would make or complete."""

    @abstractmethod
    def grants(self, role: str, to: str, *, pipeline: bool = False) -> list[str]:
        """The statements that let a role of the database play one of our roles in this store."""

    @abstractmethod
    def require_consumer(self, *, pipeline: bool = False) -> None:
        """Raises NotPermittedError when the user may not do all that a consumer does, where that can be asked."""

    @abstractmethod
    def siblings(self) -> list[str]:
        """The names of all stores in this database, this one included once it has been used."""


def is_pipeline_store(store: Store) -> TypeGuard[PipelineStore]:
    """Whether a pipeline can work on this store."""
    return PIPELINE in store.features
