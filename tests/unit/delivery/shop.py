"""A small pipeline of one destination, run without Spark, whose destination can be away."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from homing import HandlerChain, MessageContext, destination
from homing.delivery import AuditReport, Batch, PipelineStores, Settlement, open_pipeline_stores, run_audit
from homing.delivery.local_replay import replay_in_process
from homing.message import ACKNOWLEDGED
from homing.stores.sql import SqlStore


class Shop:
    """What reached the destination is in `got`."""

    def __init__(self, stores: PipelineStores) -> None:
        self.stores = stores
        self.away = False
        self.got: list[object] = []

        @destination
        def crm(ctx: MessageContext) -> None:
            if self.away:
                raise ConnectionError("away")
            self.got.append(ctx.get_content())

        self.chain = HandlerChain("orders", destinations_flow=[crm])

    def batch(self, run_id: str) -> Batch:
        return Batch(self.stores, run_id, ["crm"], chain="orders")

    def run(self, run_id: str, *, away: bool = False) -> Settlement:
        """Claims what is due, and delivers it."""
        batch = self.batch(run_id)
        batch.claim(100)
        self._deliver(batch, away)
        return batch.settle()

    def replay(self, run_id: str, ids: list[str], *, away: bool = False) -> Settlement:
        """Delivers what has failed; what fails again is dead."""
        batch = self.batch(run_id)
        batch.reclaim(ids)
        self._deliver(batch, away)
        return batch.finish_replay()

    def _deliver(self, batch: Batch, away: bool) -> None:
        self.away = away
        replay_in_process(self.stores, batch, self.chain)

    def books(self) -> AuditReport:
        return run_audit(self.stores, ["crm"])


@contextmanager
def opened(url: str, dead_url: str) -> Iterator[Shop]:
    with open_pipeline_stores(url, dead_url) as stores:
        yield Shop(stores)


def bodies(store: SqlStore) -> list[object]:
    """The contents of the messages whose failures are recorded there."""
    return [message.content["message"]["body"] for message in store.browse(99) if message.state != ACKNOWLEDGED]
