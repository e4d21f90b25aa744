"""StoreListener: attach a service, start, stop."""

from __future__ import annotations

import logging
import threading
import time
from types import TracebackType
from typing import Any

from homing.errors import ConfigurationError, StoreError
from homing.invocation.error_info import sign_of
from homing.invocation.fork_safety import start_over_after_fork
from homing.listener.config import ListenerConfig, name_of
from homing.listener.metrics import Counts, ListenerMetrics
from homing.listener.service import Service
from homing.listener.workers import Run
from homing.store import COUNT, Store

log = logging.getLogger(__name__)


class StoreListener:
    """Polls a store and hands each message to the one service attached, until it has a final outcome.

    A service is a function or an object with `on_message(content)`; with type annotations it is given what it asks for:
    an `Order`, the whole `Message`, or both. An object with `on_messages(contents)` is given many at once. Handled
    messages are acknowledged. A failed one is tried again after the retry interval, while others are handled, and in
    the end goes to the dead-letter store, or is released or dropped, as the config says.

    Thread-safe. Its threads are daemons: they do not keep a process alive; `join` does.
    """

    def __init__(self, store: Store, config: ListenerConfig | None = None) -> None:
        """Raises ConfigurationError for anything but a store, or a dead-letter store that is the store itself."""
        if not isinstance(store, Store):
            raise ConfigurationError(f"a listener listens to a Store, not to {store!r}")
        self._config = ListenerConfig() if config is None else config
        if self._config.dead_letter_store is store:
            raise ConfigurationError(
                f"store {name_of(store)!r} cannot be its own dead-letter store: what failed would come back for ever"
            )
        self.store = store
        self._name = name_of(store)
        self._counts = Counts()
        self._service: Service | None = None
        self.start_over()
        start_over_after_fork(self)

    def start_over(self) -> None:
        """Called in a forked process, where nothing runs: the threads have stayed in the one it was forked from."""
        self._lock = threading.RLock()
        self._run: Run | None = None
        self._counts.start_over()

    def attach(self, service: Any) -> None:
        """Attaches the service; raises ConfigurationError if there is one already, or it cannot be one."""
        with self._lock:
            if self._service is not None:
                raise ConfigurationError(
                    f"the listener of store {self._name!r} has the service {self._service.name!r}: detach it first"
                )
            self._service = Service(service)

    def detach(self, service: Any) -> None:
        """Stops gracefully and detaches the service; raises ConfigurationError, changing nothing, if it is another."""
        with self._lock:
            if self._service is None or not self._service.is_made_of(service):
                raise ConfigurationError(f"{service!r} is not attached to the listener of store {self._name!r}")
        self.graceful_stop()
        with self._lock:
            self._service = None

    def start(self) -> None:
        """Starts polling, and returns at once; does nothing if it is running. Raises without a service."""
        with self._lock:
            if self._service is None:
                raise ConfigurationError(
                    f"the listener of store {self._name!r} has no service: attach one before it is started"
                )
            if self._current_run() is None:
                self._run = Run(self.store, self._config, self._service, self._counts)
                self._run.start()

    def graceful_stop(self, timeout: float | None = None, *, retries: bool = True) -> bool:
        """Takes no more messages, and returns when those in flight have their outcome, retries included.

        Without `retries`, what waits for its next attempt is released instead, which is sooner; what the store keeps
        until then stays there in any case. After `timeout` seconds it stops as `immediate_stop` does and returns False.
        Idempotent.
        """
        run = self._current_run()
        if run is None:
            return True
        in_time = run.drain(timeout, give_back=not retries)
        if not in_time:
            run.stop()
        self._forget(run)
        return in_time

    def immediate_stop(self) -> None:
        """Takes no more messages and acknowledges none: those in flight come back when their leases end. Idempotent.

        Does not wait for a handler that is running; whatever that one returns has no effect.
        """
        run = self._current_run()
        if run is not None:
            run.stop()
            self._forget(run)

    def join(self, timeout: float | None = None) -> bool:
        """Waits until the listener is stopped, `timeout` seconds at most; returns whether it has stopped."""
        limit = None if timeout is None else time.monotonic() + timeout
        while self.is_running:
            if limit is not None and time.monotonic() >= limit:
                return False
            threading.Event().wait(0.05)
        return True

    @property
    def is_running(self) -> bool:
        """Whether it was started and not stopped."""
        return self._current_run() is not None

    def metrics(self) -> ListenerMetrics:
        """The numbers so far, and those of this moment, for which the store is asked; a store that cannot be reached
        is not waited for beyond that."""
        run = self._current_run()
        held = [] if run is None else run.board.held()
        ages = [max(0.0, time.time() - delivery.due_at) for delivery in held]
        waiting = self._oldest_waiting()
        return self._counts.read(len(held), max([*ages, *([] if waiting is None else [waiting])], default=None))

    def _oldest_waiting(self) -> float | None:
        if COUNT not in getattr(self.store, "features", ()):
            return None
        try:
            return self.store.oldest_age()
        except StoreError as error:
            log.debug("store %s does not tell its oldest age: %s", self._name, sign_of(error))
            return None

    def __enter__(self) -> StoreListener:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.graceful_stop()

    def _current_run(self) -> Run | None:
        with self._lock:
            return self._run

    def _forget(self, run: Run) -> None:
        with self._lock:
            if self._run is run:
                self._run = None
