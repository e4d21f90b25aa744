"""StoreListener: the listener of a store."""

from __future__ import annotations

import logging
import time
from typing import Any

from homing.arguments import refuses_unknown
from homing.custom_store import ThreeVerbs, as_store
from homing.errors import ConfigurationError, StoreError
from homing.invocation.error_info import sign_of
from homing.listener.config import ListenerConfig, name_of
from homing.listener.lifecycle import Listener
from homing.listener.metrics import Counts, ListenerMetrics
from homing.listener.service import Service
from homing.listener.workers import ListenerWorkers
from homing.store import COUNT, Store

log = logging.getLogger(__name__)


@refuses_unknown
class StoreListener(Listener[Service, ListenerWorkers]):
    """Polls a store and hands each message to the one service attached, until it has a final outcome.

    A service is a function or an object with `on_message(content)`; with type annotations it is given what it asks for:
    an `Order`, the whole `Message`, or both. An object with `on_messages(contents)` is given many at once. Handled
    messages are acknowledged. A failed one is tried again after the retry interval, while others are handled, and in
    the end goes to the dead-letter store, or is released or dropped, as the config says.
    """

    def __init__(self, store: Store | ThreeVerbs, config: ListenerConfig | None = None) -> None:
        """Raises ConfigurationError for anything but a store, or a dead-letter store that is the store itself."""
        listened = as_store(store, "what a listener listens to")
        self._config = ListenerConfig() if config is None else config
        if self._config.dead_letter_store is listened:
            raise ConfigurationError(
                f"store {name_of(listened)!r} cannot be its own dead-letter store: what failed would come back for ever"
            )
        if self._config.partitions is not None:
            listened.require_partitions(self._config.partitions)
        self.store = listened
        self._name = name_of(listened)
        self._counts = Counts()
        super().__init__(f"store {name_of(listened)!r}")

    def start_over(self) -> None:
        super().start_over()
        self._counts.start_over()

    def _make_service(self, service: Any) -> Service:
        return Service(service)

    def _make_run(self, service: Service) -> ListenerWorkers:
        return ListenerWorkers(self.store, self._config, service, self._counts)

    def metrics(self) -> ListenerMetrics:
        """The numbers so far, and those of this moment, for which the store is asked; a store that cannot be reached
        is not waited for beyond that."""
        run = self._current_run()
        held = [] if run is None else run.in_flight.held()
        ages = [max(0.0, time.time() - delivery.due_at) for delivery in held]
        waiting = self._oldest_waiting()
        return self._counts.read(len(held), max([*ages, *([] if waiting is None else [waiting])], default=None))

    def _oldest_waiting(self) -> float | None:
        if COUNT not in getattr(self.store, "features", ()):
            return None
        try:
            return self.store.oldest_age()
        except StoreError as error:
            log.debug("store %s does not tell its oldest age: %s", name_of(self.store), sign_of(error))
            return None
