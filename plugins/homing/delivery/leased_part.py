"""What a run has leased in each store, and which messages those are."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from homing.delivery import records
from homing.delivery.stores import PipelineStores
from homing.errors import StoreUnavailableError
from homing.failure import dead_letter_id
from homing.ledger import Entry, in_order
from homing.message import ACKNOWLEDGED, MessageRef
from homing.pipeline_store import PipelineStore
from homing.scans import LAST, Condition, held_by
from homing.store import BatchLease

log = logging.getLogger(__name__)

_HEAD = ("sequence", "id", "batch_id", "table_id", "crashes")
_HEADS = 10_000

Row = dict[str, Any]
Result = TypeVar("Result")


@dataclass(frozen=True)
class LeasedPart:
    """The messages of a batch that lie in one store, under the batch's lease in that store.

    `copies` is true for a failure store or dead-letter store, in which messages are copies of those that failed. Only
    there is a failure record believed.
    """

    store: PipelineStore
    lease: BatchLease
    copies: bool

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """The conditions by which a scan reads only what this lease still holds."""
        return held_by(self.lease)


class LeasedMessage(NamedTuple):
    """A message of a batch without its content: the id of its row, and what the ledger knows it by.

    `wrapped` says that the row is a failure record of the message, and not the message itself. `crashes` is how many
    processes are known to have died while they held the message.
    """

    row_id: str
    ref: MessageRef
    batch_id: str
    wrapped: bool
    crashes: int = 0

    @property
    def message_id(self) -> str:
        return self.ref.id

    def entry(self, flow: str, state: str, *, result: Any = None, error: Mapping[str, Any] | None = None) -> Entry:
        """Returns an entry about this message for the ledger."""
        return Entry(self.ref, flow, state, result=result, error=error, batch_id=self.batch_id)


@dataclass(frozen=True)
class RunLeases:
    """The messages that one run holds. While the dead-letter store is away, the run goes on without its messages."""

    stores: PipelineStores
    run_id: str

    def parts(self) -> list[LeasedPart]:
        """What the run holds now, store by store."""
        found = self.each(lambda store: (store, store.held_batch(self.run_id)))
        return [self.part(store, lease) for store, lease in found if lease is not None]

    def part(self, store: PipelineStore, lease: BatchLease) -> LeasedPart:
        return LeasedPart(store, lease, copies=self.stores.hold_copies(store))

    def messages_of(self, held: LeasedPart) -> list[LeasedMessage]:
        """The messages of one part of the batch, without their contents."""
        if held.copies:
            return [leased_message(row, copies=True) for row in held.store.batch_rows(held.lease)]
        return [
            LeasedMessage(row_id, MessageRef.of(table_id, number, row_id), batch_id or "", False, _crashes(crashes))
            for number, row_id, batch_id, table_id, crashes in self._heads(held)
        ]

    def _heads(self, held: LeasedPart) -> Iterator[tuple[Any, ...]]:
        pages = held.store.scans().pages(_HEAD, 0, LAST, conditions=held.conditions, page=_HEADS)
        return (row for page in pages for row in page)

    def id_in(self, store: PipelineStore, name: str) -> str:
        """Returns the id in this store of a message's copy; `name` is that of the message's reference."""
        return dead_letter_id(self.stores.store.name, name) if store is self.stores.dead_letters else name

    def names(self, wanted: Collection[str | MessageRef]) -> set[str]:
        """Returns the names of the messages that `wanted` means, and all texts in it, which may be names themselves.

        Each message is given as a reference, a name or an id. An id means all messages of this pipeline that have it.
        """
        meant = {one.name for one in wanted if not isinstance(one, str)}
        texts = {one for one in wanted if isinstance(one, str)}
        known = resolve(self.stores, texts)
        return meant | texts | {ref.name for refs in known.values() for ref in refs}

    def each(self, ask: Callable[[PipelineStore], Result]) -> list[Result]:
        """Asks the three stores, in the direction messages travel."""
        asked = (self.stores.store, self.stores.failures, self.stores.dead_letters)
        return [answer for store in asked for answer in self.ask(store, ask)]

    def ask(self, store: PipelineStore, ask: Callable[[PipelineStore], Result]) -> list[Result]:
        """Returns a list of the store's answer; an empty one if it is the dead-letter store and is away.

        A run can go on without that store, because nothing new depends on it.
        """
        try:
            return [ask(store)]
        except StoreUnavailableError as error:
            if store is not self.stores.dead_letters:
                raise
            log.warning("going on without the dead-letter store: %s", error)
            return []


def weight_of(row: Row) -> int:
    """How many bytes a row's content has."""
    body = row["message"]
    return len(body) if isinstance(body, (str, bytes)) else 0


def resolve(stores: PipelineStores, texts: Collection[str]) -> dict[str, list[MessageRef]]:
    """Returns for each of these texts the messages of this pipeline that it may mean, in the order in which they came.

    These are all messages with that id, and the one with that name. Texts that mean no message are left out.
    """
    named = {text: ref for text in texts if (ref := MessageRef.of_name(text)) is not None}
    of_id: dict[str, list[MessageRef]] = {}
    known = stores.ledger.known({*texts, *(ref.id for ref in named.values())})
    for ref in in_order(known):
        of_id.setdefault(ref.id, []).append(ref)
    found = {text: [*of_id.get(text, ()), *(ref for ref in (named.get(text),) if ref in known)] for text in texts}
    if missing := {text for text in texts if not found[text]}:
        for ref in _untold(stores):
            for text in missing & {ref.id, ref.name}:
                found[text].append(ref)
    return {text: refs for text, refs in found.items() if refs}


def _untold(stores: PipelineStores) -> Iterator[MessageRef]:
    """Yields this pipeline's messages in the failure store and the dead-letter store that the ledger may not know.

    Chains and listeners write such copies. The message is told by the id of its copy.
    """
    for store, prefix in ((stores.failures, ""), (stores.dead_letters, f"{stores.store.name}/")):
        for copy_id, state, _ in store.view.states():
            ref = MessageRef.of_name(copy_id.removeprefix(prefix)) if state != ACKNOWLEDGED else None
            if ref is not None and stores.is_own(ref, ()):
                yield ref


def leased_message(row: Row, *, copies: bool) -> LeasedMessage:
    about, wrapped = records.about(row, copies=copies), records.is_failure(row, copies=copies)
    return LeasedMessage(row["id"], about.ref, about.batch_id, wrapped, _crashes(row["crashes"]))


def _crashes(written: Any) -> int:
    # People write into the table, and not always numbers.
    return written if isinstance(written, int) else 0
