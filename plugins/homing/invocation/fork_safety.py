"""A forked process has none of its parent's threads, and a lock that one of them held stays locked for ever. It has its
parent's connections too, which only the parent may use."""

from __future__ import annotations

import os
import weakref
from typing import Any, Protocol

from homing import ids


class StartsOver(Protocol):
    """Something with locks, threads or connections of its own."""

    def start_over(self) -> None:
        """Called in a forked process, before anything else there uses the object: makes new locks."""


class LetsGo(StartsOver, Protocol):
    """Something of which nothing may be left in a forked process."""

    def let_go(self) -> None:
        """Called before this process forks, by the thread that does."""

    def go_on(self) -> None:
        """Called in this process after it has forked."""


_known: weakref.WeakSet[StartsOver] = weakref.WeakSet()
_letting_go: weakref.WeakSet[LetsGo] = weakref.WeakSet()
#: Objects of the parent. They are kept: freeing one could send something on the parent's connection.
_parents: list[Any] = []


def start_over_after_fork(thing: StartsOver) -> None:
    """Has `thing` start over in every process forked from now on, as long as it exists."""
    _known.add(thing)


def let_go_before_fork(thing: LetsGo) -> None:
    """Has `thing` let go before every fork, too."""
    _known.add(thing)
    _letting_go.add(thing)


def leave_to_parent(*things: Any) -> None:
    """Never uses, closes or frees these again: they are the parent's."""
    _parents.extend(things)


def hang_up(descriptor: int) -> None:
    """Ends this process's share of a connection of the parent's without sending anything: whatever is written there
    from now on goes nowhere. So the other side notices when the parent dies, though its child lives."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, descriptor, inheritable=False)
    os.close(nowhere)


def _let_go() -> None:
    for thing in list(_letting_go):
        thing.let_go()


def _go_on() -> None:
    for thing in list(_letting_go):
        thing.go_on()


def _start_over() -> None:
    ids.start_over()  # before all others, since they make ids as they start over
    for thing in list(_known):
        thing.start_over()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_let_go, after_in_parent=_go_on, after_in_child=_start_over)
