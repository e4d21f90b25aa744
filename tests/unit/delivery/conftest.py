from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager

import pytest

from homing.delivery import Batch, PipelineStores, open_pipeline_stores
from homing.ledger import DELIVERED, FAILED, Entry, Ledger
from homing.message import MessageRef

FLOWS = ("lake", "crm")


def opened(database: str) -> AbstractContextManager[PipelineStores]:
    """The pipeline's stores in this database."""
    return open_pipeline_stores(f"{database}?store=orders", f"{database}?store=orders_dead")


@pytest.fixture
def stores(database: str) -> Iterator[PipelineStores]:
    with opened(database) as stores:
        yield stores


@pytest.fixture
def ledger(stores: PipelineStores) -> Ledger:
    return stores.ledger


def names(stores: PipelineStores, ids: Collection[str]) -> list[str]:
    """The names of the messages of these ids, as replays are handed them; sorted."""
    return sorted(ref.name for _, _, ref in stores.store.view.states(ids))


def waiting(stores: PipelineStores) -> set[str]:
    """The ids of the messages that wait in the failure store."""
    return {message.content["message"]["id"] for message in stores.failures.browse(1000)}


class Pipeline:
    """A pipeline whose Spark jobs are played by the test: `record` says what an executor would have."""

    def __init__(self, stores: PipelineStores) -> None:
        self.stores = stores

    def batch(self, run_id: str) -> Batch:
        return Batch(self.stores, run_id, FLOWS, chain="orders")

    def claimed(self, run_id: str, *contents: object) -> tuple[Batch, list[str]]:
        """A batch that has claimed these contents, and their ids."""
        ids = self.stores.store.store_many(contents)
        batch = self.batch(run_id)
        assert batch.claim(len(ids)) == len(ids)
        return batch, ids

    def record(self, run_id: str, *entries: Entry) -> None:
        fence = self.stores.ledger.open_step(run_id, "step", 60)
        self.stores.ledger.record(fence, entries)
        self.stores.ledger.close_step(fence)

    def ref(self, message_id: str) -> MessageRef:
        """Which message of the store has this id."""
        found = [ref for _, _, ref in self.stores.store.view.states([message_id])]
        return found[0] if found else MessageRef("", 0, message_id)

    def delivered(self, run_id: str, message_id: str, *flows: str, batch_id: str | None = None) -> None:
        rows = [
            Entry(self.ref(message_id), flow, DELIVERED, result="ok", batch_id=batch_id or run_id) for flow in flows
        ]
        self.record(run_id, *rows)

    def failed(self, run_id: str, message_id: str, flow: str, *, batch_id: str | None = None) -> None:
        error = {"type": "ValueError", "message": "no good", "handler": flow, "stack": "", "attempt": 1}
        self.record(run_id, Entry(self.ref(message_id), flow, FAILED, error=error, batch_id=batch_id or run_id))


@pytest.fixture
def pipeline(stores: PipelineStores) -> Pipeline:
    return Pipeline(stores)


@pytest.fixture
def crash(monkeypatch: pytest.MonkeyPatch) -> Callable[[object, str], None]:
    """Makes the next call of a method die before it does anything, once."""

    def arrange(target: object, method: str) -> None:
        def die(*args: object, **kwargs: object) -> None:
            monkeypatch.undo()
            raise Crash(method)

        monkeypatch.setattr(target, method, die)

    return arrange


class Crash(BaseException):
    """Stands for the end of the process: nothing in the product catches it."""
