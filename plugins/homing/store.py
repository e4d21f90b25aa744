"""The Store contract: three verbs every store has, and abilities only some have.

`store` returns only when the message is durable. `retrieve` hands a message out under a lease without removing it.
`acknowledge` settles it: with success it is finished, without it is released and may be retrieved again. What else a
store can do is listed in its `features`; asking for an ability it lacks raises UnsupportedError.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, ClassVar, TypeVar

from homing.errors import UnsupportedError
from homing.message import Headers, Message

# Abilities, as they appear in `store.features`.
BULK = "bulk"  # store_many
CLAIM = "claim"  # claim and settle many under one lease with a batch id
COUNT = "count"  # count without claiming
RENEW = "renew"  # make a lease last longer
DEAD_LETTER = "dead_letter"  # keep what crashed its consumer too often aside, with its reason
LEDGER = "ledger"  # a delivery ledger beside the messages
ENVELOPE = "envelope"  # store() takes a whole Message too, with everything that is written on it

AnyStore = TypeVar("AnyStore", bound="Store")


@dataclass(frozen=True)
class BatchLease:
    """Many messages held under one lease: `lock_token` fences whatever is done to them."""

    batch_id: str
    lock_token: str
    size: int


class Store(ABC):
    """A message store. Instances may be shared between threads, not between processes."""

    #: The name people call this store by, in logs and error texts.
    name: str
    #: The abilities this store has beyond the three verbs.
    features: ClassVar[frozenset[str]] = frozenset()

    @abstractmethod
    def store(self, content: Any, *, id: str | None = None, headers: Headers | None = None) -> str:
        """Stores one message and returns its id, only when it is durable; raises StoreError otherwise.

        Idempotent by `id`: an id the store already knows is not stored a second time.
        """

    @abstractmethod
    def retrieve(self) -> Message | None:
        """The next message, leased to the caller and not removed; None when nothing is due. Does not wait."""

    @abstractmethod
    def acknowledge(self, message: str | Message, success: bool = True) -> None:
        """Finishes (success) or releases (no success) a retrieved message.

        Raises NotInFlightError for an id that was not retrieved here or is finished, LeaseLostError when the lease
        ran out or passed to somebody else; in both cases nothing was changed.
        """

    @abstractmethod
    def close(self) -> None:
        """Gives back connections. Idempotent; leases are not given back, they run out."""

    def store_many(self, contents: Iterable[Any]) -> list[str]:
        """Stores many messages, all or none, and returns their ids in order."""
        raise self._lacks(BULK)

    def claim(self, limit: int, *, batch_id: str | None = None, lease: float = 30.0) -> list[Message]:
        """Up to `limit` due messages under one lease of `lease` seconds.

        Claiming again with the same `batch_id` returns what is left of the same batch, never new messages.
        """
        raise self._lacks(CLAIM)

    def settle(self, messages: Sequence[Message], success: bool = True) -> None:
        """Acknowledges or releases claimed messages, all or none, fenced by their lock_token."""
        raise self._lacks(CLAIM)

    def renew(self, held: Message | BatchLease, lease: float) -> None:
        """Makes a lease last `lease` seconds from now; raises LeaseLostError when it ran out or is somebody else's."""
        raise self._lacks(RENEW)

    def count(self) -> dict[str, int]:
        """How many messages there are in each state."""
        raise self._lacks(COUNT)

    def _lacks(self, ability: str) -> UnsupportedError:
        have = ", ".join(sorted(self.features)) or "nothing beyond store, retrieve and acknowledge"
        return UnsupportedError(f"store {self.name!r} ({type(self).__name__}) cannot {ability}; it can: {have}")

    def __enter__(self: AnyStore) -> AnyStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
