"""Finds what makes a call for many fail: halves them until the culprit is alone, within a bound. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

T = TypeVar("T")

#: How often a batch is called for at most. Finding one culprit among 1,000 takes about 20 calls.
MOST_CALLS = 100


class FailedForAllError(Exception):
    """What a call raises when its failure is nobody's in particular: halving would find nothing. Has a cause."""


def bisect(
    first: Iterable[Sequence[T]],
    call: Callable[[Sequence[T]], object],
    give_up: Callable[[Sequence[T], Exception], object],
    *,
    is_fault: Callable[[Exception], bool] = lambda _: True,
    most_calls: int = MOST_CALLS,
) -> None:
    """Calls for these parts; what fails is halved and called for again, the largest parts first.

    Each item ends in one call that did not raise, or in `give_up` with the error: alone, with all of its part when
    the failure is for all or when the calls are used up. What is raised and is no fault of an item passes through.
    """
    parts: deque[tuple[Sequence[T], Exception | None]] = deque((part, None) for part in first if part)
    for _ in range(most_calls):
        if not parts:
            return
        part, _ = parts.popleft()
        try:
            call(part)
        except FailedForAllError as error:
            cause = error.__cause__
            give_up(part, cause if isinstance(cause, Exception) else error)
        except Exception as error:
            if not is_fault(error):
                raise
            if len(part) == 1:
                give_up(part, error)
            else:
                half = len(part) // 2
                parts += [(part[:half], error), (part[half:], error)]
    for part, before in parts:
        give_up(part, before or RuntimeError("no call was allowed"))
