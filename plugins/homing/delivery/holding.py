"""Holding: what a run has claimed, store by store, and who those messages are."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from homing.delivery import records
from homing.delivery.stores import PipelineStores
from homing.errors import StoreUnavailableError
from homing.store import BatchLease
from homing.stores.sql import SqlStore

log = logging.getLogger(__name__)

_HEAD = ("sequence", "id", "batch_id", "content_type", "crashes")
_HEADS = 10_000

Row = dict[str, Any]
Result = TypeVar("Result")


@dataclass(frozen=True)
class Held:
    """The part of a batch that one store holds for it."""

    store: SqlStore
    lease: BatchLease


class Head(NamedTuple):
    """A message of a batch without its content: its row's id, and what the ledger knows it by.

    `wrapped` says that the row is the record of a failure of that message; `crashes`, of how many that held it before
    it is known that they died.
    """

    row_id: str
    message_id: str
    life: int
    batch_id: str
    wrapped: bool
    crashes: int = 0

    @property
    def subject(self) -> records.Subject:
        return records.Subject(self.message_id, self.batch_id, self.life)


@dataclass(frozen=True)
class Holding:
    """The messages that one run holds. A dead-letter store that is away holds up only its own."""

    stores: PipelineStores
    run_id: str

    def parts(self) -> list[Held]:
        """What the run holds now, store by store."""
        found = self.each(lambda store: (store, store.held_batch(self.run_id)))
        return [Held(store, lease) for store, lease in found if lease is not None]

    def heads_of(self, held: Held) -> list[Head]:
        """The messages of one part of the batch, without their contents."""
        if held.store is self.stores.store:
            rows = list(held.store.batch_values(held.lease, _HEAD, page=_HEADS))
            if not any(kind == records.FAILURE_TYPE for *_, kind, _ in rows):
                return [
                    Head(row_id, row_id, number, batch_id or "", False, _crashes(crashes))
                    for number, row_id, batch_id, _, crashes in rows
                ]
        return [head_of(row) for row in held.store.batch_rows(held.lease)]

    def id_in(self, store: SqlStore, message_id: str) -> str:
        """What a message is called in this store."""
        if store is not self.stores.dead_letters:
            return message_id
        return records.dead_letter_id(self.stores.store.name, message_id)

    def each(self, ask: Callable[[SqlStore], Result]) -> list[Result]:
        """Asks the three stores, in the direction messages travel."""
        asked = (self.stores.store, self.stores.failures, self.stores.dead_letters)
        return [answer for store in asked for answer in self.ask(store, ask)]

    def ask(self, store: SqlStore, ask: Callable[[SqlStore], Result]) -> list[Result]:
        """The store's answer; none from a dead-letter store that is away, because nothing new depends on it."""
        try:
            return [ask(store)]
        except StoreUnavailableError as error:
            if store is not self.stores.dead_letters:
                raise
            log.warning("going on without the dead-letter store: %s", error)
            return []


def head_of(row: Row) -> Head:
    about = records.subject(row)
    return Head(
        row["id"], about.message_id, about.life, about.batch_id, records.is_failure(row), _crashes(row["crashes"])
    )


def _crashes(written: Any) -> int:
    # People write into the table, and not always numbers.
    return written if isinstance(written, int) else 0
