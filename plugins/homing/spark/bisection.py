"""Finds what makes a call for many fail. What is said to have failed has failed alone. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from homing.errors import HomingError

T = TypeVar("T")

#: How many calls may fail for one batch. With 10 % culprits, 1,000 items take about 600 calls, of which 350 fail.
MOST_FAILURES = 1_000
#: How many items may fail, each alone and none before, while not one call has passed.
MOST_IN_VAIN = 32


class InVainError(HomingError):
    """A call fails whatever it is made for: no item is to blame, for all that is known. Has a cause."""


@dataclass
class Bisection(Generic[T]):
    """Makes a call for items, in parts that adapt to how many of them it fails for.

    Each item ends in one call that did not raise, or in `give_up` with the error of a call for it alone; or it is not
    tried, when too many calls have failed. An error that no item caused passes through.
    """

    call: Callable[[Sequence[T]], object]
    give_up: Callable[[T, Exception], object]
    is_fault: Callable[[Exception], bool] = lambda _: True
    #: Whether an item has failed in an earlier try: then it is likely to fail again, and says nothing about others.
    has_failed: Callable[[T], bool] = lambda _: False
    most_failures: int = MOST_FAILURES
    _failures: int = 0
    _in_vain: int = 0
    _passed: bool = False

    def over(self, items: Sequence[T], size: int | None = None) -> int:
        """Calls for all of these, for `size` of them at first; how many were not tried. A part is items in a row.

        A part that passes makes the next one twice as large, one that fails half as large. In that, the first culprit
        is found by halving, and what comes after it is tried anew. Raises InVainError.
        """
        at, size = 0, size or (1 if any(map(self.has_failed, items)) else len(items))
        while at < len(items) and self._failures < self.most_failures:
            stop = min(at + size, len(items))
            error = self._try(items[at:stop])
            if error is None:
                at, size = stop, size * 2
                continue
            size = max(1, (stop - at) // 2)
            at = self._after_culprit(items, at, stop, error)
            if self._in_vain >= MOST_IN_VAIN and not self._passed and at < len(items):
                raise InVainError(
                    f"{self._in_vain} messages failed, each of them alone, and none passed: it is not tried with the "
                    f"{len(items) - at} others. The last error is a {type(error).__qualname__}"
                ) from error
        return len(items) - at

    def _after_culprit(self, items: Sequence[T], at: int, stop: int, error: Exception) -> int:
        """Gives the first item up that fails in this part, which has failed with that error; where it goes on."""
        mine: Exception | None = error
        while stop - at > 1:
            half = at + (stop - at) // 2
            mine = self._try(items[at:half])
            # When the first half passes, the culprit is in the other.
            at, stop = (half, stop) if mine is None else (at, half)
        mine = mine or self._try(items[at:stop])
        if mine is not None:
            self.give_up(items[at], mine)
            self._in_vain += not self.has_failed(items[at])
        return at + 1

    def _try(self, part: Sequence[T]) -> Exception | None:
        try:
            self.call(part)
        except Exception as error:
            if not self.is_fault(error):
                raise
            self._failures += 1
            return error
        self._passed = True
        return None
