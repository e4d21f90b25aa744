"""A destination's client: made by its `setup` on first use, once per process, and closed with the chain or the process.

`setup` is a function without parameters. It returns the client, or a context manager that gives it; both may be async.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from homing.invocation.coroutines import run
from homing.invocation.error_info import frames_of
from homing.invocation.fork_safety import start_over_after_fork

log = logging.getLogger(__name__)

_PATIENCE = 10.0  # seconds for a client that is being made when it is to be closed


@dataclass(frozen=True)
class _Opened:
    process: int
    client: Any
    leave: Callable[[], Any] | None


class Client:
    """What one destination talks through. Thread-safe; all threads of the process share the one client."""

    def __init__(self, setup: Callable[[], Any]) -> None:
        self._setup = setup
        self._opened: _Opened | None = None
        self.start_over()
        start_over_after_fork(self)
        _clients.add(self)

    def get(self) -> Any:
        """The client; opens it if this process has none yet. Raises what `setup` raises, and then has none still."""
        opened = self._opened
        if opened is None or opened.process != os.getpid():
            with self._lock:
                opened = self._opened
                if opened is None or opened.process != os.getpid():
                    # What a parent process opened is the parent's: neither used nor closed here.
                    opened = self._opened = _Opened(os.getpid(), *_open(self._setup))
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


def _open(setup: Callable[[], Any]) -> tuple[Any, Callable[[], Any] | None]:
    """The client, and how to leave it."""
    made = setup()
    if hasattr(type(made), "__await__"):
        made = run(made)
    if hasattr(type(made), "__enter__"):
        stack = contextlib.ExitStack()
        return stack.enter_context(made), stack.close
    if hasattr(type(made), "__aenter__"):
        return run(made.__aenter__()), lambda: run(made.__aexit__(None, None, None))
    return made, None
