"""The Store contract: three verbs every store has, and abilities only some have.

`store` returns only when the message is durable. `retrieve` hands a message out under a lease without removing it.
`acknowledge` settles it: with success it is finished, without it is released and may be retrieved again. What else a
store can do is listed in its `features`; asking for an ability it lacks raises UnsupportedError, which names the stores
that have it.

Every settlement (acknowledge, settle, defer, dead_letter, renew) is fenced by the lease: a consumer that lost it gets
LeaseLostError and changes nothing. Durations are seconds; times are aware and come back in UTC.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

from homing.errors import UnsupportedError
from homing.message import ACKNOWLEDGED, AVAILABLE, Headers, Message

# Abilities, as they appear in `store.features`.
BULK = "bulk"  # store_many: durable, all or none, in bulk
CLAIM = "claim"  # claim and settle many under one lease with a batch id
RENEW = "renew"  # make a lease last longer
SCHEDULE = "schedule"  # deliver at a time in the future
CANCEL = "cancel"  # take a scheduled message back
DEFER = "defer"  # put a message aside and receive it later by its id
DEAD_LETTER = "dead_letter"  # keep a message aside for good, with its reason; also what crashed its consumer too often
BROWSE = "browse"  # look at messages without claiming them
COUNT = "count"  # count without claiming, and tell the oldest message's age
PURGE = "purge"  # remove finished messages
RESCHEDULE = "reschedule"  # change by id when a message is due
SESSIONS = "sessions"  # first in, first out per session_id, one at a time
PRIORITY = "priority"  # lower priority comes first
TIME_TO_LIVE = "time_to_live"  # what is due for longer than that becomes dead, with the reason "expired"
DEDUPLICATION = "deduplication"  # an id stored again within a window is not stored twice
PARTITIONS = "partitions"  # consumers share a store out by partition
TRANSACTIONS = "transactions"  # store and settle inside the caller's own database transaction
WAKE_UP = "wake_up"  # wait for a message without polling for it, or be told when the next is due
PIPELINE = "pipeline"  # what the tasks of a pipeline need: batches that outlive a process, a ledger; see PipelineStore
FULL_MESSAGE = "full_message"  # store() takes a whole Message too, with everything that is written on it

ALL_FEATURES = (
    BULK, CLAIM, RENEW, SCHEDULE, CANCEL, DEFER, DEAD_LETTER, BROWSE, COUNT, PURGE, RESCHEDULE, SESSIONS, PRIORITY,
    TIME_TO_LIVE, DEDUPLICATION, PARTITIONS, TRANSACTIONS, WAKE_UP, PIPELINE, FULL_MESSAGE,
)  # fmt: skip


class StoreKind(NamedTuple):
    """A kind of store that comes with Homing."""

    #: The schemes of its URLs.
    schemes: tuple[str, ...]
    #: What opens one by its URL, as "module:function"; imported only when it is asked for.
    opener: str
    features: frozenset[str]


#: The kinds of store that come with Homing: all that other modules know of them. Stores of other packages are found
#: through their entry points.
STORE_KINDS: Mapping[str, StoreKind] = {
    "memory": StoreKind(
        ("memory",),
        "homing.stores.memory:open_memory_store",
        frozenset(ALL_FEATURES) - {TRANSACTIONS, PIPELINE},
    ),
    "sql": StoreKind(
        ("sqlite", "postgres", "postgresql", "mysql", "mariadb"),
        "homing.stores.sql:open_sql_store",
        frozenset(ALL_FEATURES),
    ),
    "rabbitmq": StoreKind(
        ("amqp", "amqps"),
        "homing.stores.rabbitmq:open_rabbitmq_store",
        frozenset({BULK, RENEW, SCHEDULE, DEAD_LETTER, TIME_TO_LIVE, FULL_MESSAGE}),
    ),
    "servicebus": StoreKind(
        ("servicebus",),
        "homing.stores.servicebus:open_servicebus_store",
        frozenset({BULK, RENEW, SCHEDULE, DEAD_LETTER, TIME_TO_LIVE, FULL_MESSAGE}),
    ),
}

# Reasons a store gives by itself for keeping a message aside as dead.
CRASHED = "crashed"  # its lease ran out `max_deliveries` times
EXPIRED = "expired"  # it was due for longer than its time_to_live
UNREADABLE = "unreadable"  # what is stored cannot be decoded
TOO_LARGE = "too large"  # no store it should go to takes so many bytes

#: The header by which the next copy of a message knows how often it was tried.
ATTEMPTS = "homing-attempts"

AnyStore = TypeVar("AnyStore", bound="Store")


@dataclass(frozen=True)
class BatchLease:
    """Many messages held under one lease: `lock_token` fences whatever is done to them."""

    batch_id: str
    lock_token: str
    size: int
    #: Whether none of these messages was leased before, as far as it was looked at.
    new: bool = False


class Store(ABC):
    """A message store. Instances may be shared between threads; a forked process starts over with connections of its
    own."""

    #: The name people call this store by, in logs and error texts.
    name: str
    #: The abilities this store has beyond the three verbs.
    features: frozenset[str] = frozenset()

    @property
    def max_message_bytes(self) -> int | None:
        """How many bytes a message may have that this store takes in; None when it cannot tell."""
        return None

    @property
    def identity(self) -> str:
        """What its messages are known by beside their numbers, anywhere and for ever: random, made with its table.

        Empty for a store whose numbers mean nothing elsewhere.
        """
        return ""

    # -- what every store can do -------------------------------------------------------------------------------

    @abstractmethod
    def store(
        self,
        content: Any,
        *,
        id: str | None = None,
        headers: Headers | None = None,
        scheduled_at: datetime | None = None,
        transaction: Any = None,
    ) -> str:
        """Stores one message and returns its id, only when it is durable; raises StoreError otherwise.

        `content` is any JSON value, str or bytes, or a whole Message with its id and properties; what is given beside
        a Message replaces its own. Idempotent by `id`: an id the store already knows is not stored a second time
        (DEDUPLICATION). `scheduled_at` needs SCHEDULE; `transaction`, the caller's own SQLAlchemy connection or
        session on whose commit the message is stored, needs TRANSACTIONS.
        """

    @abstractmethod
    def retrieve(self) -> Message | None:
        """The next message, leased to the caller and not removed; None when nothing is due. Does not wait.

        Order: priority, then due time, then sequence.
        """

    @abstractmethod
    def acknowledge(self, message: str | Message, success: bool = True, *, transaction: Any = None) -> None:
        """Finishes (success) or releases (no success) a retrieved message.

        Raises NotInFlightError for an id that was not retrieved here or is finished, LeaseLostError when the lease
        ran out or passed to another consumer; in both cases nothing was changed.
        """

    def close(self) -> None:  # noqa: B027 - a store without connections has nothing to give back
        """Gives back connections. Idempotent; leases are not given back, they run out."""

    def require_writable(self) -> None:  # noqa: B027 - most stores cannot tell
        """Raises StoreUnavailableError when the store is known to take nothing now, as one that is read-only.

        A store that cannot find out without storing something says nothing.
        """

    def refuse_unknown(self) -> None:  # noqa: B027 - most stores come to be when they are used
        """Raises TableMissingError when the store is known not to exist yet. Creates nothing, as other calls would."""

    def rest(self, message: Message, *, resting: bool) -> None:  # noqa: B027 - not every store counts crashes
        """Notes that no handler works on this retrieved message for a while, or that one does again: a lease that runs
        out while it rests is not a crash. The lease itself is as it was. Raises as `acknowledge` does.

        A store that is not told by its own means what was in hand and what was not does nothing.
        """

    def postpone(self, message: Message, seconds: float, *, attempts: int) -> bool:
        """Puts a retrieved message back until so many seconds from now, as one that was tried `attempts` times: its
        header ATTEMPTS says so then. That is not a crash, and meanwhile it is not leased. Raises as `acknowledge` does.

        False, and nothing was done, where the store has no way to do that or needs none: see `rest`.
        """
        return False

    # -- many at a time ----------------------------------------------------------------------------------------

    def store_many(self, contents: Iterable[Any], *, transaction: Any = None) -> list[str]:
        """Stores many contents or Messages, all or none, and returns their ids in order."""
        raise self._lacks(BULK)

    def claim(
        self,
        limit: int,
        *,
        batch_id: str | None = None,
        lease: float | None = None,
        session_id: str | None = None,
        partitions: Collection[int] | None = None,
    ) -> list[Message]:
        """Up to `limit` due messages under one lease of `lease` seconds; without it, the store's own, which backs off.

        Claiming again with the same `batch_id` returns what is left of the same batch, never new messages; what was
        released or claimed by others meanwhile has left it, and a batch that all have left is a new one. Of each
        session only the first unfinished message is claimed; with `session_id`, the first `limit` of that session, in
        order, while no other consumer holds one of them. `partitions` keeps to these.
        """
        raise self._lacks(CLAIM)

    def settle(
        self, messages: Sequence[Message], success: bool | Sequence[bool] = True, *, transaction: Any = None
    ) -> None:
        """Acknowledges or releases claimed messages, all or none, fenced by their lock_token.

        `success` is one outcome for all, or one for each. Raises as `acknowledge` does, naming the first offender.
        """
        raise self._lacks(CLAIM)

    def renew(self, held: BatchLease | Message | Sequence[Message], lease: float) -> None:
        """Makes the lease last `lease` seconds from now; raises LeaseLostError if the caller does not hold it any
        more."""
        raise self._lacks(RENEW)

    # -- other ends a message can come to ----------------------------------------------------------------------

    def cancel(self, message_id: str) -> bool:
        """Takes back a message that is scheduled and was never handed out; False if the message does not exist."""
        raise self._lacks(CANCEL)

    def defer(self, message: str | Message) -> None:
        """Puts a retrieved message aside: only `receive_deferred` hands it out again."""
        raise self._lacks(DEFER)

    def receive_deferred(self, ids: Collection[str], *, lease: float | None = None) -> list[Message]:
        """Leases those of these messages that are deferred. What is released afterwards is an ordinary message."""
        raise self._lacks(DEFER)

    def dead_letter(self, message: str | Message, *, reason: str, description: str | None = None) -> None:
        """Keeps a retrieved message aside for good, with its reason; `browse(state="dead")` shows it."""
        raise self._lacks(DEAD_LETTER)

    def finish_dead(self, ids: Collection[str]) -> None:
        """Acknowledges messages that the store keeps aside as dead, after a copy of them is durable elsewhere."""
        raise self._lacks(DEAD_LETTER)

    def reschedule(self, ids: Collection[str], at: datetime, *, delivery_count: int | None = None) -> int:
        """Makes these messages due at another time, unless they are leased or finished; returns how many.

        `delivery_count` replaces theirs: a lower one backs off less.
        """
        raise self._lacks(RESCHEDULE)

    # -- looking, without claiming -----------------------------------------------------------------------------

    def browse(
        self, limit: int = 100, *, state: str | None = None, after: int = 0, ids: Collection[str] | None = None
    ) -> list[Message]:
        """Messages as they are, in order of sequence_number, from the one behind `after` on; nothing is leased.

        `state` and `ids` keep to these. What cannot be decoded has its raw text as content.
        """
        raise self._lacks(BROWSE)

    def browse_written(self, limit: int, *, ids: Collection[str], after: int = 0) -> list[Message]:
        """The same with the headers as they were stored, where an application's own columns may say others by now."""
        return self.browse(limit, ids=ids, after=after)

    def count(self) -> dict[str, int]:
        """How many messages there are in each state."""
        raise self._lacks(COUNT)

    def lengths(self) -> dict[str, int] | None:
        """How many messages there are in each state of which the store can tell, as `count` where it has that ability;
        None where it can tell of none."""
        return self.count() if COUNT in self.features else None

    def probe(self) -> dict[str, int] | None:
        """As `lengths`, to find out whether the store answers: makes nothing. Raises StoreError when it does not."""
        found = self.lengths()
        if found is None:
            self.has_due()
        return found

    def require_partitions(self, partitions: Collection[int]) -> None:
        """Raises UnsupportedError where this store is not cut into partitions, and ConfigurationError for one that it
        does not have. Connects to nothing."""
        raise self._lacks(PARTITIONS)

    def has_due(self, *, partitions: Collection[int] | None = None) -> bool | None:
        """Whether a consumer could claim a message now; None where only claiming tells. Takes nothing.

        `partitions`, as in `claim`, keeps to these.
        """
        if partitions is not None:
            self.require_partitions(partitions)
        counts = self.lengths()
        if counts is not None:
            return counts[AVAILABLE] > 0
        return bool(self.browse(1, state=AVAILABLE)) if BROWSE in self.features else None

    def oldest_age(self) -> float | None:
        """For how many seconds the longest-waiting available message has been due; None when none is."""
        raise self._lacks(COUNT)

    @property
    def wakes(self) -> bool:
        """Whether `wait` is told of a new message, rather than looking for it again and again."""
        return False

    def wait(
        self, timeout: float, *, ended: Callable[[], bool] = bool, partitions: Collection[int] | None = None
    ) -> bool:
        """Blocks until a message may be due, in these partitions if they are given, at most `timeout` seconds; False
        when there is still none, or when `ended` says that the caller does not wait any more."""
        raise self._lacks(WAKE_UP)

    def wake(self) -> None:
        """Makes all callers of `wait` ask their `ended` now."""
        raise self._lacks(WAKE_UP)

    def due_in(self, *, partitions: Collection[int] | None = None) -> float | None:
        """In how many seconds a message may be due, 0 for now; None when none waits. Does not block. `partitions`, as
        in `claim`, keeps to these."""
        raise self._lacks(WAKE_UP)

    # -- housekeeping ------------------------------------------------------------------------------------------

    def purge(self, older_than: float | None = None, *, state: str = ACKNOWLEDGED) -> int:
        """Removes acknowledged (or dead) messages that have been so for `older_than` seconds; how many.

        Without `older_than`, the store's own `purge_after`, and no less than its `duplicate_window`. The ids of removed
        messages are forgotten.
        """
        raise self._lacks(PURGE)

    def purgeable(self, older_than: float | None = None, *, state: str = ACKNOWLEDGED) -> int:
        """How many messages `purge` would remove now; at most, where the store cannot tell their age beforehand."""
        return self.count()[state]

    def expire(self) -> int:
        """Dead-letters, now, what has been due for longer than its time to live and is not leased; how many. A store
        that does so by itself, whenever it is asked for messages, does nothing more."""
        return 0

    # -- for a pipeline ----------------------------------------------------------------------------------------

    def ledger(self) -> Any:
        """The delivery ledger kept beside this store. What else a pipeline needs is in `PipelineStore`."""
        raise self._lacks(PIPELINE)

    def _lacks(self, ability: str) -> UnsupportedError:
        """The error for an ability this store does not have."""
        others = [name for name, kind in STORE_KINDS.items() if ability in kind.features]
        have = ", ".join(sorted(self.features)) or "nothing beyond store, retrieve and acknowledge"
        who = f"stores that can: {', '.join(others)}" if others else "no store can"
        return UnsupportedError(
            f"store {self.name!r} ({type(self).__name__}) lacks the ability {ability!r}; {who}; this one has: {have}"
        )

    def __enter__(self: AnyStore) -> AnyStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
