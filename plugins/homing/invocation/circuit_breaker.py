"""CircuitBreaker: pauses the calls of a destination after many of them have failed."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from homing.arguments import refuses_unknown
from homing.constraints import AtLeastOne, Positive, check_fields
from homing.errors import CircuitOpenError
from homing.invocation.fork_safety import start_over_after_fork
from homing.invocation.rate_limit import Clock


@refuses_unknown
@dataclass(frozen=True)
class CircuitBreaker:
    """After `failures` calls that failed one after the other, no call is made for `pause` seconds; then one call tries.

    If that one succeeds all may call again, otherwise the pause begins anew. A value: immutable, safe to share.
    """

    failures: AtLeastOne = 5
    pause: Positive = 30.0

    def __post_init__(self) -> None:
        check_fields(self, of="a circuit breaker")


class Circuit:
    """A circuit breaker at work."""

    def __init__(self, breaker: CircuitBreaker, clock: Clock = time.monotonic) -> None:
        self._breaker = breaker
        self._clock = clock
        self._failures = 0
        self._open_until: float | None = None  # when the next call may try
        self.start_over()
        start_over_after_fork(self)

    def start_over(self) -> None:
        """Called in a forked process: the call that was trying has stayed in the one it was forked from."""
        self._lock = threading.Lock()
        self._trying = False

    def enter(self) -> None:
        """Before a call. Raises CircuitOpenError when it is not to be made."""
        with self._lock:
            if self._open_until is None:
                return
            left = self._open_until - self._clock()
            if left > 0 or self._trying:
                raise CircuitOpenError(
                    f"not called: it failed {self._failures} times one after the other, "
                    f"and is tried again in {max(left, 0):.0f} seconds"
                )
            self._trying = True

    def succeeded(self) -> None:
        """After a call that succeeded."""
        with self._lock:
            self._failures, self._open_until, self._trying = 0, None, False

    def failed(self) -> None:
        """After a call that failed."""
        with self._lock:
            self._failures += 1
            self._trying = False
            if self._failures >= self._breaker.failures:
                self._open_until = self._clock() + self._breaker.pause
