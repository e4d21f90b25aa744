"""When to try again: a pure decision from an error and the number of the attempt it ended."""

from __future__ import annotations

import math
from dataclasses import dataclass

from homing.errors import ConfigurationError


@dataclass(frozen=True)
class RetryDecision:
    """What to do after a failed attempt: try again after `delay` seconds, or give up."""

    retry: bool
    delay: float = 0.0


GIVE_UP = RetryDecision(retry=False)


@dataclass(frozen=True)
class RetryPolicy:
    """The first attempt plus `max_retries` more, `interval` seconds apart.

    A value: immutable, comparable, safe to share. Raises ConfigurationError for a negative or fractional
    `max_retries`, and for an `interval` that is not a positive, finite number, even where no retry will
    happen.
    """

    max_retries: int = 0
    interval: float = 1.0

    def __post_init__(self) -> None:
        if type(self.max_retries) is not int or self.max_retries < 0:
            raise ConfigurationError(f"max_retries must be a whole number from 0 up, not {self.max_retries!r}")
        if type(self.interval) not in {int, float} or not (math.isfinite(self.interval) and self.interval > 0):
            raise ConfigurationError(f"the retry interval must be more than 0 seconds, not {self.interval!r}")

    def decide(self, error: BaseException, attempt: int) -> RetryDecision:
        """What follows `attempt` (the first is 1) having ended with `error`. Pure; waits for nothing."""
        del error  # this policy treats every error alike
        if attempt > self.max_retries:
            return GIVE_UP
        return RetryDecision(retry=True, delay=float(self.interval))
