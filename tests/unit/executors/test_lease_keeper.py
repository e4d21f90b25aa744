"""The driver's heartbeat, without a job."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from homing.delivery import Batch, PipelineStores, open_pipeline_stores
from homing.delivery.lease_keeper import LeaseKeeper
from homing.errors import LeaseLostError, StoreUnavailableError
from homing.stores.sql import SqlStore

LEASE = 12.0  # renewed after four seconds: a machine that is busy has eight to come to it


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[PipelineStores]:
    database = f"sqlite:///{tmp_path}/orders.db"
    with open_pipeline_stores(f"{database}?store=orders", f"{database}?store=dead") as opened:
        opened.store.store_many(range(3))
        yield opened


@pytest.fixture
def batch(stores: PipelineStores) -> Batch:
    held = Batch(stores, "run", ["crm"])
    assert held.claim(3, LEASE) == 3
    return held


def ends(stores: PipelineStores) -> tuple[int, int]:
    """When the lease of the batch ends, and that of the step."""

    def work(connection: sa.Connection) -> tuple[int, int]:
        batch = connection.execute(sa.select(sa.func.min(stores.store._table.c.time_next))).scalar_one()
        step = connection.execute(sa.select(sa.func.min(stores.ledger._steps.c.time_expires))).scalar_one()  # type: ignore[attr-defined]
        return batch, step

    return stores.store._database.read(work)


def wait_until(done: Callable[[], bool]) -> None:
    limit = time.monotonic() + 60
    while not done():
        assert time.monotonic() < limit
        time.sleep(0.05)


def lost_once(keeper: LeaseKeeper, lost: threading.Event) -> None:
    with pytest.raises(LeaseLostError), keeper:
        told = lost.wait(30)
    assert told  # looked at here, since leaving the block raises whatever was raised in it


def test_both_the_batch_and_the_step_are_renewed(stores: PipelineStores, batch: Batch) -> None:
    fence = stores.ledger.open_step("run", "process", LEASE)
    batch_ended, step_ended = ends(stores)
    with LeaseKeeper(batch, stores.ledger, fence, LEASE, lambda: pytest.fail("it was not lost")):
        wait_until(lambda: ends(stores)[0] > batch_ended and ends(stores)[1] > step_ended)


def test_a_step_that_was_taken_over_stops_the_job(stores: PipelineStores, batch: Batch) -> None:
    fence, lost = stores.ledger.open_step("run", "process", LEASE), threading.Event()
    stores.ledger.open_step("run", "process", LEASE)
    lost_once(LeaseKeeper(batch, stores.ledger, fence, LEASE, lost.set), lost)


def test_a_batch_that_somebody_else_holds_stops_the_job(stores: PipelineStores, batch: Batch) -> None:
    fence, lost = stores.ledger.open_step("run", "process", LEASE), threading.Event()
    keeper = LeaseKeeper(batch, stores.ledger, fence, LEASE, lost.set)
    taken = stores.store._table.update().values(lock_token="somebody else")  # noqa: S106
    stores.store._database.write(lambda connection: connection.execute(taken))
    lost_once(keeper, lost)


def test_a_database_that_is_away_for_a_moment_is_no_loss(
    stores: PipelineStores, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    fence = stores.ledger.open_step("run", "process", LEASE)
    before, renew = ends(stores), SqlStore.renew
    asked: list[Any] = []

    def away_once(self: SqlStore, *args: Any) -> None:
        asked.append(args)
        if len(asked) == 1:
            raise StoreUnavailableError("for a moment")
        renew(self, *args)

    monkeypatch.setattr(SqlStore, "renew", away_once)
    with LeaseKeeper(batch, stores.ledger, fence, LEASE, lambda: pytest.fail("it was not lost")):
        wait_until(lambda: ends(stores)[0] > before[0])
    assert len(asked) > 1
