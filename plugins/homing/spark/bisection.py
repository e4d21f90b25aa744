"""Bisection: finds the items for which a call fails, when the call takes many items at once. Has no side effects."""

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
    """A call failed for every item it was tried with, so probably no item is to blame. Its cause is the last error."""


@dataclass
class Bisection(Generic[T]):
    """Makes a call for many items, part by part. The more calls fail, the smaller are the parts.

    Each item ends in a call that did not raise; or, after a call for it alone has failed, in `give_up` with that error.
    When too many calls have failed, the remaining items are not tried. An error that no item caused, by what `is_fault`
    says, is raised.
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
        """Makes the call for all these items, at first for `size` of them. Returns how many items were not tried.

        A part is some items in a row. After a part that passes, the next is twice as large; after one that fails, half
        as large. In a part that fails, the first item to blame is found by halving, and the items after it are tried
        again. Raises InVainError.
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
        """Gives up the first item that fails in this part, which failed with `error`. Returns where to go on."""
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
