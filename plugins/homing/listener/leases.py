"""DeliveryLeases: the leases of what a listener holds, renewed for as long as it does."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from homing.errors import UnsupportedError
from homing.lease_renewer import LeaseRenewer
from homing.listener.config import name_of
from homing.listener.delivery import Delivery
from homing.store import CLAIM, RENEW, Store

_UNKNOWN = 3.0  # seconds that a lease is taken to last where the store alone knows how long it does


class DeliveryLeases:
    """Renews at the store, where it can. Thread-safe."""

    def __init__(self, store: Store, lease: float, on_lost: Callable[[Delivery], object]) -> None:
        self._store = store
        self._name = name_of(store)
        self._lease = lease
        self._first = lease if CLAIM in store.features else min(lease, _UNKNOWN)
        self._on_lost = on_lost
        self._renews = RENEW in store.features
        self._renewer = LeaseRenewer(f"homing-{self._name}-leases")

    def keep(self, delivery: Delivery) -> None:
        """From now on, under the lease that its message has now."""
        if self._renews:
            self._renewer.forget(delivery)
            self._renewer.keep(
                delivery,
                f"message {delivery.id} of store {self._name}",
                partial(self._renew, delivery),
                lasts=self._first,
                on_lost=lambda _: self._on_lost(delivery),
            )

    def forget(self, delivery: Delivery) -> None:
        self._renewer.forget(delivery)

    def close(self) -> None:
        """Without waiting for a store that does not answer."""
        self._renewer.close(patience=0)

    def _renew(self, delivery: Delivery) -> float | None:
        try:
            self._store.renew(delivery.message, self._lease)
        except UnsupportedError:
            return None
        return self._lease
