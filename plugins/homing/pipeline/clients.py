"""A destination's client: made by its `setup` on first use, once per process, and closed with the chain or the process.

`setup` is a function without parameters, or with one for the destination's connections. It returns the client, or a
context manager that gives it; both may be async. Where a connection says something new, the client is made anew.
"""

from __future__ import annotations

import atexit
import contextlib
import inspect
import logging
import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from homing.declared_connections import DeclaredConnections
from homing.errors import ChainError
from homing.invocation.coroutines import run
from homing.invocation.error_info import frames_of
from homing.invocation.fork_safety import start_over_after_fork

log = logging.getLogger(__name__)

_MORE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_PATIENCE = 10.0  # seconds for a client that is being made when it is to be closed


@dataclass(frozen=True)
class _Opened:
    process: int
    client: Any
    leave: Callable[[], Any] | None
    #: What it logged in with. Secrets.
    connections: dict[str, str] = field(repr=False)

    def is_for(self, connections: dict[str, str]) -> bool:
        return self.process == os.getpid() and self.connections == connections


class Client:
    """What one destination talks through. Thread-safe; all threads of the process share the one client."""

    def __init__(self, setup: Callable[..., Any], connections: DeclaredConnections) -> None:
        """Raises ChainError for a `setup` that takes something else, or connections that were not declared."""
        self._setup = setup
        self._connections = connections
        self._arguments = (connections,) if _takes_connections(setup, connections) else ()
        self._opened: _Opened | None = None
        self.start_over()
        start_over_after_fork(self)
        _clients.add(self)

    def get(self) -> Any:
        """The client; opens it if this process has none yet. Raises what `setup` raises, and then has none still."""
        said = self._connections.texts() if self._arguments else {}
        opened = self._opened
        if opened is None or not opened.is_for(said):
            with self._lock:
                opened = self._opened
                if opened is None or not opened.is_for(said):
                    self._opened = None
                    self._leave(opened)
                    opened = self._opened = _Opened(os.getpid(), *_open(self._setup, *self._arguments), said)
        return opened.client

    def close(self) -> None:
        """Leaves the context manager, if this process opened one. Idempotent; the next `get` opens it anew.

        Does not wait for a `setup` that hangs.
        """
        if not self._lock.acquire(timeout=_PATIENCE):
            log.warning("%s hangs, and what it makes is not closed", getattr(self._setup, "__qualname__", self._setup))
            return
        opened, self._opened = self._opened, None
        self._lock.release()
        self._leave(opened)

    def _leave(self, opened: _Opened | None) -> None:
        # What a parent process opened is the parent's: neither used nor closed here.
        if opened is None or opened.leave is None or opened.process != os.getpid():
            return
        try:
            opened.leave()
        except Exception as error:  # noqa: BLE001 - an author's code, of which nothing depends by now
            name = getattr(self._setup, "__qualname__", self._setup)
            log.error("the client made by %s did not close: %s", name, frames_of(error))  # noqa: TRY400 - no texts

    def start_over(self) -> None:
        """Called in a forked process."""
        self._lock = threading.Lock()


_clients: weakref.WeakSet[Client] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for client in list(_clients):
        client.close()


def _takes_connections(setup: Callable[..., Any], connections: DeclaredConnections) -> bool:
    try:
        parameters = inspect.signature(setup).parameters.values()
    except (TypeError, ValueError):
        return False  # written in C, as classes may be
    needed = [each for each in parameters if each.default is each.empty and each.kind not in _MORE]
    if len(needed) > 1 or (needed and needed[0].kind is inspect.Parameter.KEYWORD_ONLY):
        raise ChainError(f"setup= of the {connections.who} takes nothing, or its connections, and no more parameters")
    if needed and not connections.ids:
        raise ChainError(
            f"setup= of the {connections.who} has the parameter {needed[0].name!r}, which is for connections: name "
            "them in connections="
        )
    return bool(needed)


def _open(setup: Callable[..., Any], *arguments: Any) -> tuple[Any, Callable[[], Any] | None]:
    """The client, and how to leave it."""
    made = setup(*arguments)
    if hasattr(type(made), "__await__"):
        made = run(made)
    if hasattr(type(made), "__enter__"):
        stack = contextlib.ExitStack()
        return stack.enter_context(made), stack.close
    if hasattr(type(made), "__aenter__"):
        return run(made.__aenter__()), lambda: run(made.__aexit__(None, None, None))
    return made, None
