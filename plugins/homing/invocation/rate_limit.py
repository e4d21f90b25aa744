"""RateLimiter: so many turns a second, and no more. Everything that keeps to a rate does so by this."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

from homing.constraints import Positive, check
from homing.invocation.fork_safety import start_over_after_fork

Clock = Callable[[], float]


class RateLimiter:
    """At most `per_second` turns a second, evenly spread. Thread-safe.

    Turns that nothing took are lost, except to `take`, which may take those of the last `burst` seconds at once.
    """

    def __init__(
        self,
        per_second: float,
        *,
        burst: float = 0.0,
        clock: Clock = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        check("rate in calls per second", per_second, Positive)
        self.per_second = per_second
        self._interval = 1.0 / per_second
        self._burst = max(burst, self._interval)
        self._clock = clock
        self._sleep = sleep
        self._next = -math.inf  # when the first turn comes that nothing has taken
        self.start_over()
        start_over_after_fork(self)

    def start_over(self) -> None:
        """Called in a forked process, which goes on with its own turns."""
        self._lock = threading.Lock()

    def wait(self, turns: int = 1) -> None:
        """Takes so many turns, and returns when the first of them has come."""
        pause = self.reserve(turns)
        if pause > 0:
            self._sleep(pause)

    def reserve(self, turns: int = 1) -> float:
        """Takes so many turns; in how many seconds the first of them comes."""
        with self._lock:
            now = self._clock()
            mine = max(now, self._next)
            self._next = mine + self._interval * turns
            return mine - now

    def take(self, wanted: int) -> int:
        """Takes those of the wanted turns that have come already; how many. What is not used is to be given back."""
        with self._lock:
            now = self._clock()
            self._next = max(self._next, now - self._burst)
            taken = max(0, min(wanted, math.floor((now - self._next) * self.per_second + 1e-6)))
            self._next += self._interval * taken
            return taken

    def give_back(self, turns: int) -> None:
        """These were taken and not used."""
        with self._lock:
            self._next -= self._interval * turns

    def pause(self) -> float:
        """In how many seconds `take` has a turn."""
        with self._lock:
            return max(0.0, self._next + self._interval - self._clock())
