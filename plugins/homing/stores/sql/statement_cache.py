"""Statements built once and kept: putting one together takes longer than running it for one message."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import sqlalchemy as sa

_KEPT = 100

Built = TypeVar("Built", bound=sa.Executable)


class Statements:
    """The statements of one table, each by what it depends on; what changes from run to run are its parameters."""

    def __init__(self) -> None:
        self._built: dict[Hashable, Any] = {}

    def get(self, build: Callable[..., Built], *depends_on: Hashable) -> Built:
        """What `build` makes of this, now or before."""
        key = (build.__name__, *depends_on)
        found = self._built.get(key)
        if found is None:
            if len(self._built) >= _KEPT:
                self._built.clear()
            found = self._built[key] = build(*depends_on)
        return found
