"""Builds each statement once and keeps it: to build one takes longer than to run it for one message."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import sqlalchemy as sa

_KEPT = 100

Built = TypeVar("Built", bound=sa.Executable)


class Statements:
    """The statements of one table. The key of each is what its text depends on; the values in it are parameters."""

    def __init__(self) -> None:
        self._built: dict[Hashable, Any] = {}

    def get(self, build: Callable[..., Built], *depends_on: Hashable) -> Built:
        """Returns the statement that `build` makes from these arguments. It is built only if it is not kept yet."""
        key = (build.__name__, *depends_on)
        found = self._built.get(key)
        if found is None:
            if len(self._built) >= _KEPT:
                self._built.clear()
            found = self._built[key] = build(*depends_on)
        return found
