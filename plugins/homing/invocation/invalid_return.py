"""Results that a handler may not return, because they show unfinished work. One rule for chain, listener and bus."""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
from collections.abc import Awaitable, Coroutine, Iterable, Mapping
from typing import Any

_LAZY = (map, filter, zip, enumerate)
_FUTURES = (asyncio.Future, concurrent.futures.Future)


def find_return_fault(returned: Any) -> BaseException | None:
    """The error of a handler that returned this; None when it may be taken for the result of work that is done.

    A returned exception is that error itself. A generator or a coroutine that was not awaited has not run, and the
    result of a Future is not known yet. Several of them in a list, tuple, set or dict are no better than one.
    """
    fault = _find_one(returned)
    if fault is None and isinstance(returned, (list, tuple, set, frozenset, dict)):
        items: Iterable[Any] = returned.values() if isinstance(returned, Mapping) else returned
        return next((found for item in items if (found := _find_one(item)) is not None), None)
    return fault


def _find_one(returned: Any) -> BaseException | None:
    # Most results are nothing, a text or a number, and this is asked after every delivery.
    if returned is None or type(returned) in _PLAIN:
        return None
    if isinstance(returned, BaseException):
        return returned
    kind = type(returned).__qualname__
    if isinstance(returned, type) and issubclass(returned, BaseException):
        return TypeError(f"it returned the exception type {returned.__qualname__}; an error is raised, not returned")
    if inspect.isgenerator(returned) or inspect.isasyncgen(returned) or _is_lazy(returned):
        return TypeError(f"it returned a {kind}, which has not run yet; do the work before returning")
    if isinstance(returned, _FUTURES):
        return TypeError(f"it returned a {kind}, which may not have ended; wait for its result")
    if isinstance(returned, Awaitable):  # a coroutine, or what a client's request is before it is awaited
        if isinstance(returned, Coroutine):
            returned.close()  # it is never awaited
        return TypeError(f"it returned a {kind} that was not awaited and has not run; await it")
    return None


def _is_lazy(returned: Any) -> bool:
    return isinstance(returned, _LAZY) or type(returned).__module__ == "itertools"


_PLAIN = frozenset({bool, int, float, str, bytes})
