"""The stores one pipeline works with."""

from __future__ import annotations

from collections.abc import Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from homing.errors import ConfigurationError
from homing.ledger import Ledger
from homing.message import MessageRef
from homing.pipeline_store import PipelineStore, is_pipeline_store
from homing.store import PIPELINE
from homing.stores import open_store


@dataclass(frozen=True)
class PipelineStores:
    """The stores in which a pipeline's messages wait, wait for a replay, or are dead; and the pipeline's ledger."""

    store: PipelineStore
    failures: PipelineStore
    dead_letters: PipelineStore
    ledger: Ledger

    def is_own(self, ref: MessageRef, known: Container[MessageRef]) -> bool:
        """Whether this message, of which a copy lies in the dead-letter store, is this pipeline's: the ledger, whose
        `known` ones these are, has it, or one of its tables took it in. Others may have stores of the same names."""
        return ref in known or (bool(ref.table_id) and ref.table_id in (self.store.identity, self.failures.identity))

    def require_apart(self) -> None:
        """Raises ConfigurationError if dead letters would come back as messages: two URLs may lead to one table, as two
        names of one server do. Asks the databases."""
        if self.dead_letters.identity and self.dead_letters.identity in (self.store.identity, self.failures.identity):
            raise _not_apart(self.dead_letters)

    def hold_copies(self, store: PipelineStore) -> bool:
        """Whether settlements write what lies in this store: copies of messages, as records of their failures."""
        return store is not self.store


@contextmanager
def open_pipeline_stores(store_url: str, dead_letter_url: str, *, read_only: bool = False) -> Iterator[PipelineStores]:
    """Opens the stores and closes them at the end of the block; with `read_only` for looking, and nothing else.

    The failure store lies beside the store, in the same database, and is named after it.
    """
    with (
        _open(store_url, "store", read_only) as store,
        store.failures() as failures,
        _open(dead_letter_url, "dead-letter store", read_only) as dead_letters,
    ):
        if dead_letters.place in (store.place, failures.place):
            raise _not_apart(dead_letters)
        yield PipelineStores(store, failures, dead_letters, store.ledger())


def _open(url: str, role: str, read_only: bool) -> PipelineStore:
    opened = open_store(url, read_only=read_only)
    if not is_pipeline_store(opened):
        raise ConfigurationError(f"the {role} of a pipeline needs the ability {PIPELINE!r}, which only SQL stores have")
    return opened


def _not_apart(dead_letters: PipelineStore) -> ConfigurationError:
    return ConfigurationError(
        f"the dead-letter store {dead_letters.name!r} is also the pipeline's store or failure store: "
        "give it a name of its own, such as ?store=dead_letters"
    )
