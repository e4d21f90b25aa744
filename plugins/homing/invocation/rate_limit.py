"""Protects destinations: limits the calls per second, and pauses calls after many have failed. Thread-safe."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from homing.constraints import AtLeastOne, Positive, check, check_fields
from homing.errors import CircuitOpenError

T = TypeVar("T")

Clock = Callable[[], float]


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
        self._lock = threading.Lock()
        self._failures = 0
        self._closed_until_tried: float | None = None  # when the next call may try
        self._trying = False

    def enter(self) -> None:
        """Before a call. Raises CircuitOpenError when it is not to be made."""
        with self._lock:
            if self._closed_until_tried is None:
                return
            left = self._closed_until_tried - self._clock()
            if left > 0 or self._trying:
                raise CircuitOpenError(
                    f"not called: it failed {self._failures} times one after the other, "
                    f"and is tried again in {max(left, 0):.0f} seconds"
                )
            self._trying = True

    def succeeded(self) -> None:
        """After a call that succeeded."""
        with self._lock:
            self._failures, self._closed_until_tried, self._trying = 0, None, False

    def failed(self) -> None:
        """After a call that failed."""
        with self._lock:
            self._failures += 1
            self._trying = False
            if self._failures >= self._breaker.failures:
                self._closed_until_tried = self._clock() + self._breaker.pause


@dataclass
class _Sharing:
    callers: int = 1


_sharing = _Sharing()


def share_rates(callers: int) -> None:
    """From now on this process keeps to an equal share of every rate: as many processes call the same destinations."""
    _sharing.callers = max(1, callers)


class Rate:
    """So many calls a second, evenly spread, by all processes that share it."""

    def __init__(
        self, per_second: float, clock: Clock = time.monotonic, sleep: Callable[[float], object] = time.sleep
    ) -> None:
        check("rate in calls per second", per_second, Positive)
        self._interval = 1.0 / per_second
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()
        self._next = -math.inf

    def wait(self) -> None:
        """Returns when the next call may be made."""
        with self._lock:
            now = self._clock()
            mine = max(now, self._next)
            self._next = mine + self._interval * _sharing.callers
        if mine > now:
            self._sleep(mine - now)


class Guard:
    """Makes calls within a rate and behind a circuit breaker; both may be missing."""

    def __init__(
        self, rate: Rate | None, circuit: Circuit | None, answers: tuple[type[BaseException], ...] = ()
    ) -> None:
        """`answers` are exceptions that prove that the destination works."""
        self.rate = rate
        self._circuit = circuit
        self._answers = answers

    def call(self, function: Callable[..., T], *args: Any) -> T:
        """The function's result. Raises what it raises, or CircuitOpenError when it was not called."""
        if self._circuit is None:
            self._wait()
            return function(*args)
        self._circuit.enter()
        try:
            self._wait()
            result = function(*args)
        except self._answers:
            self._circuit.succeeded()
            raise
        except BaseException:
            self._circuit.failed()
            raise
        self._circuit.succeeded()
        return result

    def _wait(self) -> None:
        if self.rate is not None:
            self.rate.wait()
