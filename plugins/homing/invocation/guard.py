"""Guard: protects a destination by a rate, by a circuit breaker, or by both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from homing.invocation.circuit_breaker import Circuit
from homing.invocation.rate_limit import RateLimiter

T = TypeVar("T")


@dataclass
class _Sharing:
    callers: int = 1


_sharing = _Sharing()


def share_rates(callers: int) -> None:
    """From now on this process keeps to an equal share of every rate: as many processes call the same destinations."""
    _sharing.callers = max(1, callers)


class Guard:
    """Makes calls within a rate and behind a circuit breaker; both may be missing."""

    def __init__(
        self, rate: RateLimiter | None, circuit: Circuit | None, answers: tuple[type[BaseException], ...] = ()
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
            self.rate.wait(_sharing.callers)
