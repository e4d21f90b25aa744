"""Listener: attach a service, start, stop. The same for a store and for the bus."""

from __future__ import annotations

import inspect
import threading
import time
from abc import ABC, abstractmethod
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from homing.errors import ConfigurationError
from homing.invocation.fork_safety import start_over_after_fork

if TYPE_CHECKING:
    from typing_extensions import Self


class AttachedService(Protocol):
    """What was attached, ready to be called."""

    attached: Any
    name: str


class ListenerRun(Protocol):
    """The threads of a listener between one start and the stop that follows it."""

    def start(self) -> None: ...

    def drain(self, timeout: float | None, give_back: bool) -> bool:
        """Takes nothing more, and waits until what was begun has its outcome; False when that took too long."""

    def stop(self) -> None:
        """Takes and settles nothing more."""


AnyService = TypeVar("AnyService", bound=AttachedService)
AnyRun = TypeVar("AnyRun", bound=ListenerRun)


class Listener(ABC, Generic[AnyService, AnyRun]):
    """What StoreListener and BusListener have in common.

    Thread-safe. Its threads are daemons: they do not keep a process alive; `join` does. As a block it is started on the
    way in, where a service is attached by then, and stopped gracefully on the way out.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._service: AnyService | None = None
        self.start_over()
        start_over_after_fork(self)

    def start_over(self) -> None:
        """Called in a forked process, where nothing runs: the threads have stayed in the one it was forked from."""
        self._lock = threading.RLock()
        self._run: AnyRun | None = None

    @abstractmethod
    def _make_service(self, service: Any) -> AnyService:
        """Raises ConfigurationError for what cannot be one."""

    @abstractmethod
    def _make_run(self, service: AnyService) -> AnyRun: ...

    def attach(self, service: Any) -> None:
        """Attaches the service; raises ConfigurationError if there is one already, or it cannot be one."""
        with self._lock:
            if self._service is not None:
                raise ConfigurationError(
                    f"the listener of {self._name} has the service {self._service.name!r} attached: detach it first"
                )
            self._service = self._make_service(service)

    def detach(self, service: Any) -> None:
        """Stops gracefully and detaches the service; raises ConfigurationError, changing nothing, if it is another."""
        with self._lock:
            if self._service is None or not _is_same(self._service.attached, service):
                raise ConfigurationError(
                    f"{service!r} is not attached to the listener of {self._name}: cannot detach it"
                )
        self.graceful_stop()
        with self._lock:
            self._service = None

    def start(self) -> None:
        """Starts listening, and returns at once; does nothing if it is running. Raises without a service, and where a
        connection is not there that handlers of the chain declare which is the service."""
        with self._lock:
            if self._service is None:
                raise ConfigurationError(
                    f"the listener of {self._name} has no service: attach one before it is started"
                )
            if self._current_run() is None:
                require = getattr(self._service.attached, "require_connections", None)
                if require is not None:
                    require()
                self._run = self._make_run(self._service)
                self._run.start()

    def graceful_stop(self, timeout: float | None = None, *, retries: bool = True) -> bool:
        """Takes no more messages, and returns when those in flight have their outcome, retries included.

        Without `retries`, what waits here for its next attempt is released instead, which is sooner; what the store
        keeps until then stays there in any case. After `timeout` seconds it stops as `immediate_stop` does and returns
        False. A service may stop its own listener: what that service is handling is settled when it returns.
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

    def _current_run(self) -> AnyRun | None:
        with self._lock:
            return self._run

    def _forget(self, run: AnyRun) -> None:
        with self._lock:
            if self._run is run:
                self._run = None

    def __enter__(self) -> Self:
        if self._service is not None:
            self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.graceful_stop()


def _is_same(attached: Any, service: Any) -> bool:
    """Whether this is the service that was attached."""
    return service is attached or (inspect.ismethod(service) and inspect.ismethod(attached) and service == attached)
