"""Erasure: removes a message that a person wants forgotten, from everywhere in its pipeline.

First it writes a tombstone, which says which message it is and nothing of its content. If the process dies half-way,
forgetting the same id again finishes the work, and the audit knows that the message was not lost.

Then it removes the message from each store, in the direction in which messages travel: a message that moves on
meanwhile is still found. The ledger comes last. As long as a copy of the message could be replayed, the ledger keeps it
from being delivered twice.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from homing.delivery.leased_part import resolve
from homing.delivery.stores import PipelineStores
from homing.errors import ConfigurationError, StillHeldError
from homing.failure import dead_letter_id, ref_in
from homing.ledger import DELIVERED, Entry
from homing.message import Message, MessageRef
from homing.pipeline_store import PipelineStore

_PAGE = 100


@dataclass(frozen=True)
class Traces:
    """What the pipeline has of one message: how many rows in which of its stores, and how many in the ledger."""

    ref: MessageRef
    rows: Mapping[str, int]
    ledger: int
    #: The runs that had it in hand.
    runs: frozenset[str]
    #: The destinations that have it.
    delivered_to: tuple[str, ...]


@dataclass(frozen=True)
class Erased:
    """What was removed: how many rows from each store, how many rows of the ledger, and which folders of runs.

    `remarks` say what is left to do by hand.
    """

    rows: Mapping[str, int]
    ledger: int
    folders: Sequence[str]
    remarks: Sequence[str]


def find(stores: PipelineStores, text: str) -> list[MessageRef]:
    """The messages that this id or name may mean, including those whose erasure was begun."""
    named = MessageRef.of_name(text)
    ids = [text] if named is None else [text, named.id]
    found = [ref for refs in resolve(stores, [text]).values() for ref in refs]
    found += [ref for _, _, ref in stores.store.view.states(ids) if ref.id == text or ref == named]
    found += [ref for ref in stores.ledger.tombstones.unfinished(ids) if ref.id == text or ref == named]
    if named is not None and any(_rows(stores, store, named) for store in _places(stores).values()):
        found.append(named)
    return list(dict.fromkeys(found))


def look(stores: PipelineStores, ref: MessageRef) -> Traces:
    """What there is of this message. Changes nothing."""
    entries = stores.ledger.known([ref.id]).get(ref, {})
    places = {role: len(_rows(stores, store, ref)) for role, store in _places(stores).items()}
    delivered = {entry.destination for entry in entries.values() if entry.state == DELIVERED}
    return Traces(ref, places, len(entries), _runs(stores, ref, entries), tuple(sorted(delivered)))


def forget(
    stores: PipelineStores,
    refs: Sequence[MessageRef],
    reason: str,
    *,
    erase_folders: Callable[[Collection[str]], Sequence[str]] = lambda _: (),
) -> Erased:
    """Removes these messages, finished or not, from all stores of the pipeline and from its ledger.

    `erase_folders` gets the ids of the runs that worked on these messages. It removes what those runs left in work
    directories, and returns the names of the folders. May be called again, and finishes what was interrupted.

    Raises StillHeldError, which says until when, for a message that a process works on, or may work on.
    """
    if not reason.strip():
        raise ConfigurationError("reason must not be empty: it is all that is kept of a forgotten message")
    for ref in refs:
        _refuse_busy(stores, ref)
    tombstones = stores.ledger.tombstones
    tombstones.begin(refs, reason)
    runs = {run_id for ref in refs for run_id in look(stores, ref).runs}
    folders = erase_folders(runs)
    rows = {role: sum(_remove(stores, store, ref) for ref in refs) for role, store in _places(stores).items()}
    ledger = stores.ledger.remove(refs)
    remarks = _scrub(stores)
    tombstones.finish(refs)
    return Erased(rows, ledger, folders, remarks)


def _places(stores: PipelineStores) -> dict[str, PipelineStore]:
    """The stores by what they are for, in the direction in which messages travel."""
    return {"store": stores.store, "failure store": stores.failures, "dead-letter store": stores.dead_letters}


def _rows(stores: PipelineStores, store: PipelineStore, ref: MessageRef) -> dict[int, str]:
    """The numbers and ids of the message's rows in this store."""
    if stores.hold_copies(store):
        return _copies(stores, store, ref)
    return {each.sequence: each.id for _, _, each in store.view.states([ref.id]) if each == ref}


def _copies(stores: PipelineStores, store: PipelineStore, ref: MessageRef) -> dict[int, str]:
    """Finds copies by what they record, and not only by their id: something else may have been stored under that id."""
    dead = store is stores.dead_letters
    copy_id = dead_letter_id(stores.store.name, ref.name) if dead else ref.name
    return {each.sequence_number or 0: each.id for each in _browse(store, copy_id) if ref_in(each) == ref}


def _browse(store: PipelineStore, message_id: str) -> Iterator[Message]:
    """Yields all messages with this id. There may be several where finished messages are archived."""
    after = 0
    while page := store.browse(_PAGE, ids=[message_id], after=after):
        yield from page
        after = page[-1].sequence_number or 0


def _runs(stores: PipelineStores, ref: MessageRef, entries: Mapping[str, Entry]) -> frozenset[str]:
    claimed = stores.store.view.batches_of([ref.id]).values() if _rows(stores, stores.store, ref) else ()
    recorded = (run_id for entry in entries.values() for run_id in (entry.batch_id, entry.run_id))
    return frozenset(filter(None, (*claimed, *recorded)))


def _refuse_busy(stores: PipelineStores, ref: MessageRef) -> None:
    for store in _places(stores).values():
        store.erasure.require_free(_rows(stores, store, ref))
    # A process that lost the message may still have its content in hand, and could record it again.
    until = stores.ledger.busy_until(look(stores, ref).runs)
    if until is not None:
        raise StillHeldError(
            f"message {ref.id} is not forgotten while a run that had it is at work, until {until:%Y-%m-%d %H:%M:%S} UTC"
            ", or longer; try again after that"
        )


def _remove(stores: PipelineStores, store: PipelineStore, ref: MessageRef) -> int:
    rows = _rows(stores, store, ref)
    return store.erasure.remove(rows) if rows else 0


def _scrub(stores: PipelineStores) -> list[str]:
    tables: dict[str, tuple[PipelineStore, list[str]]] = {}
    for store in _places(stores).values():
        _, names = tables.setdefault(store.place[0], (store, []))
        names += store.erasure.tables()
    tables[stores.store.place[0]][1].append(stores.ledger.table_name)
    return [remark for store, names in tables.values() if (remark := store.erasure.scrub(names))]
