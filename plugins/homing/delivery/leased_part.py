"""What a run has leased, store by store, and which messages those are."""

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
    """The part of a batch that one store holds for it. `copies` says that settlements write what lies there: only then
    is the record of a failure believed."""

    store: PipelineStore
    lease: BatchLease
    copies: bool

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """Keeps to what the lease still holds."""
        return held_by(self.lease)


class LeasedMessage(NamedTuple):
    """A message of a batch without its content: its row's id, and what the ledger knows it by.

    `wrapped` says that the row is the record of a failure of that message; `crashes`, of how many that held it before
    it is known that they died.
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
        """What the ledger is to say of it."""
        return Entry(self.ref, flow, state, result=result, error=error, batch_id=self.batch_id)


@dataclass(frozen=True)
class RunLeases:
    """The messages that one run holds. A dead-letter store that is away holds up only its own."""

    stores: PipelineStores
    run_id: str

    def parts(self) -> list[LeasedPart]:
        """What the run holds now, store by store."""
        found = self.each(lambda store: (store, store.held_batch(self.run_id)))
        return [self.part(store, lease) for store, lease in found if lease is not None]

    def part(self, store: PipelineStore, lease: BatchLease) -> LeasedPart:
        """What this lease holds in this store."""
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
        """What the copy of a message, whose reference has this name, is called in this store."""
        return dead_letter_id(self.stores.store.name, name) if store is self.stores.dead_letters else name

    def names(self, wanted: Collection[str | MessageRef]) -> set[str]:
        """The names of the messages that are meant: each by its reference or its name, or by its id, which is that of
        all messages the ledger knows by it."""
        meant = {one.name for one in wanted if not isinstance(one, str)}
        texts = {one for one in wanted if isinstance(one, str)}
        known = resolve(self.stores, texts)
        return meant | texts | {ref.name for refs in known.values() for ref in refs}

    def each(self, ask: Callable[[PipelineStore], Result]) -> list[Result]:
        """Asks the three stores, in the direction messages travel."""
        asked = (self.stores.store, self.stores.failures, self.stores.dead_letters)
        return [answer for store in asked for answer in self.ask(store, ask)]

    def ask(self, store: PipelineStore, ask: Callable[[PipelineStore], Result]) -> list[Result]:
        """The store's answer; none from a dead-letter store that is away, because nothing new depends on it."""
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
    """The messages of this pipeline that each of these texts may mean, in the order in which they came: all of that id,
    and the one of that name. Texts that mean nothing here are left out."""
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
    """The messages of which a copy waits that no run has recorded yet: chains and listeners write such copies. Told by
    the copies' ids."""
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
