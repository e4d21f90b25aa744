"""What a handler may not return: whatever shows that the work is not done. One rule for chain, listener and bus."""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
from collections.abc import Iterable, Mapping
from itertools import starmap
from typing import Any

_LAZY = (map, filter, starmap)
_FUTURES = (asyncio.Future, concurrent.futures.Future)


def fault_of(returned: Any) -> BaseException | None:
    """The error of a handler that returned this; None when it may be taken for the result of work that is done.

    A returned exception is that error itself. A generator, a coroutine nobody awaited and their like have run nothing,
    and of a Future it is not known how it ends. Several of them in a list, tuple, set or dict are no better than one.
    """
    fault = _fault_of(returned)
    if fault is None and isinstance(returned, (list, tuple, set, frozenset, dict)):
        items: Iterable[Any] = returned.values() if isinstance(returned, Mapping) else returned
        return next((found for item in items if (found := _fault_of(item)) is not None), None)
    return fault


def _fault_of(returned: Any) -> BaseException | None:
    # Most results are nothing, a text or a number, and this is asked after every delivery.
    if returned is None or type(returned) in _PLAIN:
        return None
    if isinstance(returned, BaseException):
        return returned
    kind = type(returned).__qualname__
    if isinstance(returned, type) and issubclass(returned, BaseException):
        return TypeError(f"it returned the exception type {returned.__qualname__}; an error is raised, not returned")
    if inspect.iscoroutine(returned):
        returned.close()  # nobody will await it
        return TypeError("it returned a coroutine that nobody awaited, which has run nothing; await it")
    if inspect.isgenerator(returned) or inspect.isasyncgen(returned) or isinstance(returned, _LAZY):
        return TypeError(f"it returned a {kind}, a generator which has run nothing; do the work before returning")
    if isinstance(returned, _FUTURES):
        return TypeError(f"it returned a {kind}, of which nobody knows how it ends; wait for its result")
    return None


_PLAIN = frozenset({bool, int, float, str, bytes})
