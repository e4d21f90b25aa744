"""When to try again: a pure decision from an error and the number of the attempt it ended.

The same policy serves destinations (`@destination(retry=...)`), listeners (`ListenerConfig(retry=...)`), Airflow's
tasks (`delivery_dag(retry=...)`) and a SQL store's back-off (`store.configure(**policy.backoff_options())`).
"""

from __future__ import annotations

import random
import zlib
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from homing.arguments import refuses_unknown
from homing.constraints import Count, Factor, NotNegative, Positive, Share, check, check_fields
from homing.errors import ConfigurationError, causes_of

_random = random.Random()  # noqa: S311
_FOREVER = 10.0**9  # seconds, thirty years: what any delay is cut off at, because clocks and locks overflow


class Retry(Exception):
    """`raise Retry(after=30)` in a handler: this attempt failed, and the next is wanted `after` seconds from now.

    It uses up an attempt like any failure. `after` may be a timedelta; without it the policy's own delay counts. Raises
    ConfigurationError where it is negative or not finite.
    """

    def __init__(self, reason: str = "", *, after: float | timedelta | None = None) -> None:
        super().__init__(reason or "the handler asked to be tried again")
        seconds = after.total_seconds() if isinstance(after, timedelta) else after
        check("after", seconds, NotNegative | None)
        self.after: float | None = None if seconds is None else min(float(seconds), _FOREVER)

    def __reduce__(self) -> tuple[Any, ...]:
        return _make_retry, (str(self), self.after)


@dataclass(frozen=True)
class RetryDecision:
    """What to do after a failed attempt: try again after `delay` seconds, or give up."""

    retry: bool
    delay: float = 0.0


GIVE_UP = RetryDecision(retry=False)


@refuses_unknown
@dataclass(frozen=True)
class RetryPolicy:
    """The first attempt plus `max_retries` more, `interval` seconds apart.

    `multiplier` makes each delay that many times the one before, `max_interval` caps them, and `jitter` (0 to 1) takes
    off up to that share of a delay, so that many messages do not come back at the same moment. An error of a type in
    `never` is not tried again.

    A value: immutable, comparable, safe to share. Raises ConfigurationError for a negative or fractional `max_retries`,
    and for an `interval` that is not a positive, finite number, even where no retry will happen.
    """

    max_retries: Count = 0
    interval: Positive = 1.0
    multiplier: Factor = field(default=1.0, kw_only=True)
    max_interval: Positive | None = field(default=None, kw_only=True)
    jitter: Share = field(default=0.0, kw_only=True)
    never: tuple[type[BaseException], ...] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        check_fields(self)
        if type(self.never) is not tuple or not all(_is_error_type(kind) for kind in self.never):
            raise ConfigurationError(f"never must be a tuple of exception types, got {self.never!r}")

    @classmethod
    def exponential(
        cls,
        max_retries: int,
        interval: float = 1.0,
        *,
        multiplier: float = 2.0,
        max_interval: float | None = 300.0,
        jitter: float = 0.2,
    ) -> RetryPolicy:
        """Delays that grow, up to a cap, and are spread a little."""
        return cls(max_retries, interval, multiplier=multiplier, max_interval=max_interval, jitter=jitter)

    def decide(self, error: BaseException, attempt: int, *, key: str = "") -> RetryDecision:
        """What follows `attempt` (the first is 1) having ended with `error`. Pure; waits for nothing.

        `key`, such as the id of the message, is what the jitter is drawn from. Where several handlers of a chain
        failed, one whose error may be tried again is enough, and the longest of their delays counts.
        """
        mendable = [cause for cause in causes_of(error) if not isinstance(cause, self.never)]
        if attempt > self.max_retries or not mendable:
            return GIVE_UP
        return RetryDecision(retry=True, delay=max(self._delay_after(cause, attempt, key) for cause in mendable))

    def delay(self, attempt: int, *, key: str = "") -> float:
        """Seconds from the end of `attempt` (the first is 1) to the next one. Pure: the same key, the same delay."""
        limit = _FOREVER if self.max_interval is None else min(float(self.max_interval), _FOREVER)
        try:
            grown = float(self.interval) * float(self.multiplier) ** (attempt - 1)
        except OverflowError:
            grown = limit
        delay = min(grown, limit)
        shortest, longest = spread(delay, self.jitter, least=0.0, most=delay)
        return longest - (longest - shortest) * _share(key, attempt)

    def task_arguments(self) -> dict[str, Any]:
        """The same policy in the words of an Airflow task: `retries`, `retry_delay` and their like.

        Airflow spreads growing delays by itself, and knows nothing of the errors inside a task: raises
        ConfigurationError for `never`, and for the jitter of a fixed delay, which would be lost.
        """
        if self.never:
            raise ConfigurationError(
                f"an Airflow task cannot tell {', '.join(kind.__qualname__ for kind in self.never)} from other errors: "
                "give never= to the destination, @destination(retry=...)"
            )
        if self.jitter and self.multiplier <= 1:
            raise ConfigurationError("Airflow spreads growing delays only: use RetryPolicy.exponential, or no jitter")
        arguments: dict[str, Any] = {"retries": self.max_retries, "retry_delay": timedelta(seconds=self.interval)}
        if self.multiplier > 1:
            arguments["retry_exponential_backoff"] = float(self.multiplier)
        if self.max_interval is not None:
            arguments["max_retry_delay"] = timedelta(seconds=self.max_interval)
        return arguments

    def backoff_options(self) -> dict[str, float]:
        """The delays in the words of a SQL store, for what is released: `store.configure(**policy.backoff_options())`.

        How often to try and what never to try again is decided by the code that releases.
        """
        return {
            "backoff": float(self.interval),
            "backoff_multiplier": float(self.multiplier),
            "max_backoff": _FOREVER if self.max_interval is None else float(self.max_interval),
            "backoff_jitter": float(self.jitter),
        }

    def _delay_after(self, error: BaseException, attempt: int, key: str) -> float:
        if isinstance(error, Retry) and error.after is not None:
            return error.after
        return self.delay(attempt, key=key)


def one_policy(
    retry: RetryPolicy | None, max_retries: int, retry_interval: float, *, usual: RetryPolicy, of: str
) -> RetryPolicy:
    """The policy of what takes either `retry`, or `max_retries` and `retry_interval`, whose defaults are `usual`.

    Raises ConfigurationError where both are given. `of` says in the error what they are given to.
    """
    counted = RetryPolicy(max_retries, retry_interval)
    if retry is None:
        return counted
    if not isinstance(retry, RetryPolicy):
        raise ConfigurationError(f"retry= of {of} must be a RetryPolicy, got {retry!r:.80}")
    if counted != usual:
        raise ConfigurationError(f"{of} takes either retry= or max_retries= and retry_interval=, not both")
    return retry


def spread(wait: float, jitter: float, *, least: float, most: float) -> tuple[float, float]:
    """Returns the shortest and the longest that a wait may be once jitter spreads it.

    `jitter` is the share by which a wait may differ. A wait below `most` is only made longer, up to `most`. A wait of
    `most` is only made shorter, down to `least`.
    """
    if wait < most:
        return wait, min(wait * (1 + jitter), most)
    return max(wait * (1 - jitter), least), wait


def doubled(seconds: float, deliveries: int, *, most: float, jitter: float) -> float:
    """How long a store's wait or lease is after so many deliveries: doubled with each up to `most`, and from the second
    on spread by up to `jitter`, so that what failed together comes back apart."""
    most = max(seconds, most)
    wait = min(seconds * 2.0 ** min(deliveries - 1, 60), most)
    if deliveries == 1:
        return wait
    shortest, longest = spread(wait, jitter, least=seconds, most=most)
    return _random.uniform(shortest, longest)


def _share(key: str, attempt: int) -> float:
    """A number from 0 up to 1 that looks random and is always the same for the same key and attempt."""
    return zlib.crc32(f"{key}:{attempt}".encode("utf-8", "replace")) / 2**32


def _is_error_type(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseException)


def _make_retry(reason: str, after: float | None) -> Retry:
    return Retry(reason, after=after)
