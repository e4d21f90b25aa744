"""LeaseKeeper: keeps a batch, and the right to record in the ledger, while work goes on."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

from homing.delivery.batch import Batch
from homing.errors import LeaseLostError
from homing.lease_renewer import LeaseRenewer
from homing.ledger import Fence, Ledger


class LeaseKeeper:
    """Renews the leases of a batch, and the right to record, until the end of the block.

    It renews what the batch held when the LeaseKeeper was made. When a lease is lost, it calls `on_lost` once, to stop
    the job, and leaving the block raises LeaseLostError. If the database is unavailable for a moment, the lease is not
    lost yet.
    """

    def __init__(self, batch: Batch, ledger: Ledger, fence: Fence, lease: float, on_lost: Callable[[], object]) -> None:
        self._held = batch.held()
        self._ledger = ledger
        self._fence = fence
        self._lease = lease
        self._on_lost = on_lost
        self._lost: LeaseLostError | None = None
        self._renewer = LeaseRenewer("homing-lease-keeper")

    def __enter__(self) -> LeaseKeeper:
        what = f"batch {self._fence.run_id}"
        self._renewer.keep(self._fence, what, self._renew, lasts=self._lease, on_lost=self._stop_job)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._renewer.close()
        if self._lost is not None:
            raise self._lost

    def _renew(self) -> float:
        try:
            self._ledger.renew_step(self._fence, self._lease)
            for held in self._held:
                held.store.renew(held.lease, self._lease)
        except LeaseLostError as error:
            self._lost = error  # noticed also by a renewal that is on its way when the block is left
            raise
        return self._lease

    def _stop_job(self, _: Exception) -> None:
        self._on_lost()
