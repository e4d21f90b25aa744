"""LeaseRenewer: renews leases while the work that they protect goes on, for everything in Homing that holds any."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from homing.errors import LeaseLostError, NotInFlightError
from homing.invocation.error_info import frames_of, sign_of
from homing.invocation.fork_safety import start_over_after_fork

log = logging.getLogger(__name__)

_RENEW_AT = 1 / 3  # of a lease: two failures are survived
_SHORTEST = 0.1  # seconds between two renewals, even if a wrong clock makes a lease look shorter
_AFTER_FAILURE = 0.5  # seconds: an outage is not asked about more often than that
_ROUND = 0.1  # of its interval: what is due so soon is renewed in the same round
_IDLE = 10.0  # seconds without any lease after which the thread ends
_PATIENCE = 10.0  # seconds that closing waits for a renewal that is on its way


def _do_nothing(*_: Any) -> None: ...


@dataclass(slots=True, eq=False)
class _Lease:
    what: str
    renew: Callable[[], float | None]
    on_lost: Callable[[Exception], object]
    on_end: Callable[[], object]
    every: float
    due: float
    until: float


class LeaseRenewer:
    """Renews each lease at a third of its length, in a thread of its own that does not keep a process alive.

    What cannot be renewed because the store is away is tried again until the store answers: only the store knows
    whether the lease is lost. A lost lease is not renewed any more. Thread-safe; the functions it is given may call it.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._is_closed = False
        self.start_over()
        start_over_after_fork(self)

    def start_over(self) -> None:
        """Called in a forked process: the leases kept so far are for the parent to renew."""
        self._leases: dict[Hashable, _Lease] = {}
        self._lock = threading.Lock()
        self._changed = threading.Event()
        self._thread: threading.Thread | None = None
        self._wakes_at = math.inf

    def keep(
        self,
        key: Hashable,
        what: str,
        renew: Callable[[], float | None],
        *,
        lasts: float,
        longest: float = math.inf,
        on_lost: Callable[[Exception], object] = _do_nothing,
        on_end: Callable[[], object] = _do_nothing,
    ) -> None:
        """Keeps a lease that ends in `lasts` seconds by calling `renew`, until it is forgotten.

        `renew` returns the seconds the lease lasts from then on, or None when it is not to be kept any more; it raises
        LeaseLostError or NotInFlightError when the lease is lost, and then `on_lost` is called with that, once.
        After `longest` seconds the lease is not renewed any more, and `on_end` is called. For a lease that is kept
        already, that time starts anew, and nothing else changes. `what` is the lease's name in logs.
        """
        now = time.monotonic()
        with self._lock:
            if self._is_closed:
                return
            lease = self._leases.get(key)
            if lease is None:
                every = lasts * _RENEW_AT
                lease = self._leases[key] = _Lease(what, renew, on_lost, on_end, every, now + every, 0.0)
            lease.until = now + longest
            lease.due = min(lease.due, lease.until)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            elif lease.due < self._wakes_at:
                self._changed.set()

    def forget(self, key: Hashable) -> None:
        """This lease is not renewed any more."""
        with self._lock:
            self._leases.pop(key, None)

    def renew_due(self) -> None:
        """Renews what is due now in the calling thread, for callers that leave no other thread the time to do it."""
        with self._lock:
            due = self._due(time.monotonic())
        for key, lease in due:
            self._attend_to(key, lease)

    def close(self, *, patience: float = _PATIENCE) -> None:
        """Renews nothing any more, and ends the thread; waits so many seconds for a renewal that is on its way.
        Idempotent."""
        with self._lock:
            self._is_closed = True
            self._leases.clear()
            self._changed.set()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(patience)

    # -- in the thread -----------------------------------------------------------------------------------------

    def _run(self) -> None:
        while due := self._wait_for_due():
            for key, lease in due:
                self._attend_to(key, lease)

    def _wait_for_due(self) -> list[tuple[Hashable, _Lease]]:
        """Blocks until something is due; empty when the thread is to end."""
        is_idle = False
        while True:
            with self._lock:
                now = time.monotonic()
                if self._is_closed or (is_idle and not self._leases):
                    self._thread = None
                    return []
                self._wakes_at = min((lease.due for lease in self._leases.values()), default=math.inf)
                if self._wakes_at <= now:
                    return self._due(now)
                self._changed.clear()
                pause = self._wakes_at - now if self._leases else _IDLE
            is_idle = not self._changed.wait(min(pause, threading.TIMEOUT_MAX))

    def _due(self, now: float) -> list[tuple[Hashable, _Lease]]:
        return [item for item in self._leases.items() if item[1].due - item[1].every * _ROUND <= now]

    def _attend_to(self, key: Hashable, lease: _Lease) -> None:
        if lease.until <= time.monotonic():
            self._let_go(key, lease, lease.on_end)
            return
        try:
            lasts = lease.renew()
        except (LeaseLostError, NotInFlightError) as error:
            log.warning("the lease on %s is not renewed any more: %s", lease.what, sign_of(error))
            self._let_go(key, lease, lambda error=error: lease.on_lost(error))  # type: ignore[misc]
            return
        except Exception as error:  # noqa: BLE001 - whatever it is, this lease is tried again and the others are kept
            every = max(lease.every / 2, min(lease.every, _AFTER_FAILURE), _SHORTEST)
            log.warning("the lease on %s could not be renewed, trying again: %s", lease.what, sign_of(error))
        else:
            if lasts is None:
                self._let_go(key, lease, _do_nothing)
                return
            every = max(lasts * _RENEW_AT, _SHORTEST)
        with self._lock:
            lease.every, lease.due = every, min(time.monotonic() + every, lease.until)

    def _let_go(self, key: Hashable, lease: _Lease, tell: Callable[[], object]) -> None:
        """Tells that a lease has ended, unless it was forgotten or kept anew meanwhile."""
        with self._lock:
            is_ended = tell is not lease.on_end or lease.until <= time.monotonic()
            if self._leases.get(key) is not lease or not is_ended:
                return
            del self._leases[key]
        try:
            tell()
        except Exception as error:  # noqa: BLE001 - the other leases are kept all the same
            log.error("the end of the lease on %s could not be handled: %s", lease.what, frames_of(error))  # noqa: TRY400
