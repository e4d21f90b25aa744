"""A forked process has none of its parent's threads, and a lock that one of them held stays locked for ever."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class StartsOver(Protocol):
    """Something with locks or threads of its own."""

    def start_over(self) -> None:
        """Called in a forked process, before anything else there uses the object: makes new locks."""


_known: weakref.WeakSet[StartsOver] = weakref.WeakSet()


def start_over_after_fork(thing: StartsOver) -> None:
    """Has `thing` start over in every process forked from now on, for as long as anybody has it."""
    _known.add(thing)


def _start_over() -> None:
    for thing in list(_known):
        thing.start_over()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_over)
