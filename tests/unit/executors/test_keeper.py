"""The driver's heartbeat keeps the batch and the step, and ends the job when either is lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from homing.delivery import Batch, PipelineStores, open_pipeline_stores
from homing.delivery.keeper import LeaseKeeper
from homing.errors import LeaseLostError, StoreUnavailableError
from homing.ledger import Fence
from homing.stores.sql import SqlLedger

LEASE = 6.0


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[PipelineStores]:
    url = f"sqlite:///{tmp_path}/x.db"
    with open_pipeline_stores(f"{url}?store=orders", f"{url}?store=dead") as stores:
        yield stores


@pytest.fixture
def batch(stores: PipelineStores) -> Batch:
    stores.store.store_many([1, 2])
    batch = Batch(stores, "run", ["lake"])
    assert batch.claim(10, LEASE) == 2
    return batch


@pytest.fixture
def fence(stores: PipelineStores) -> Fence:
    return stores.ledger.open_step("run", "process", LEASE)


def ends(stores: PipelineStores) -> tuple[int, int]:
    """When the lease of the batch ends, and that of the step."""
    engine = sa.create_engine(stores.store._url)
    with engine.connect() as connection:
        batch = connection.execute(sa.text("select min(time_next) from homing_orders")).scalar_one()
        (table,) = [name for name in sa.inspect(connection).get_table_names() if name.endswith("orders__steps")]
        step = connection.execute(sa.select(sa.column("time_expires")).select_from(sa.table(table))).scalar_one()
    engine.dispose()
    return batch, step


def wait_until(condition: Any) -> None:
    deadline = time.monotonic() + 15
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def test_both_leases_are_renewed_while_the_job_runs(stores: PipelineStores, batch: Batch, fence: Fence) -> None:
    before = ends(stores)

    with LeaseKeeper(batch, stores.ledger, fence, LEASE, on_lost=lambda: pytest.fail("nothing was lost")):
        wait_until(lambda: all(now > then for now, then in zip(ends(stores), before, strict=True)))


@pytest.mark.parametrize("what", ["step", "batch"])
def test_a_job_whose_lease_is_lost_is_stopped_and_its_end_is_no_success(
    stores: PipelineStores, batch: Batch, fence: Fence, what: str
) -> None:
    lost = threading.Event()
    keeper = LeaseKeeper(batch, stores.ledger, fence, 1.0, lost.set)
    if what == "step":
        stores.ledger.open_step("run", "process", 600)
    else:
        for held in batch.held():
            held.store.settle_batch(held.lease, [head.row_id for head in batch.heads()], success=False)

    with pytest.raises(LeaseLostError), keeper:
        lost.wait(15)

    assert lost.is_set(), "the job was not told"


def test_a_database_that_is_away_for_a_moment_is_no_loss(
    stores: PipelineStores, batch: Batch, fence: Fence, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, renew, away = ends(stores), SqlLedger.renew_step, list[str]()

    def away_once(ledger: SqlLedger, held: Fence, lease: float) -> None:
        if not away:
            away.append(held.step)
            raise StoreUnavailableError("no connection")
        renew(ledger, held, lease)

    monkeypatch.setattr(SqlLedger, "renew_step", away_once)
    with LeaseKeeper(batch, stores.ledger, fence, LEASE, on_lost=lambda: pytest.fail("nothing was lost")):
        wait_until(lambda: all(now > then for now, then in zip(ends(stores), before, strict=True)))
