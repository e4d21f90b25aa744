"""LeaseKeeper: a heartbeat that keeps a batch, and the right to record in the ledger, while work goes on."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from types import TracebackType

from homing.delivery.batch import Batch
from homing.errors import HomingError, LeaseLostError
from homing.ledger import Fence, Ledger

log = logging.getLogger(__name__)


class LeaseKeeper:
    """Renews, three times per lease and in a thread, what the batch held when this was made, while the block lasts.

    When a lease is lost, `on_lost` is called once, to stop the job, and leaving the block raises LeaseLostError. A
    database that is unavailable for a moment is not a loss yet.
    """

    def __init__(self, batch: Batch, ledger: Ledger, fence: Fence, lease: float, on_lost: Callable[[], object]) -> None:
        self._held = batch.held()
        self._ledger = ledger
        self._fence = fence
        self._lease = lease
        self._on_lost = on_lost
        self._stop = threading.Event()
        self._lost: LeaseLostError | None = None
        self._thread = threading.Thread(target=self._run, name="homing-lease-keeper", daemon=True)

    def __enter__(self) -> LeaseKeeper:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        if self._lost is not None:
            raise self._lost

    def _run(self) -> None:
        while not self._stop.wait(self._lease / 3):
            try:
                self._ledger.renew_step(self._fence, self._lease)
                for held in self._held:
                    held.store.renew(held.lease, self._lease)
            except LeaseLostError as error:
                self._lost = error
                self._on_lost()
                return
            except HomingError as error:
                log.warning("could not renew the lease of %s, trying again: %s", self._fence.run_id, error)
