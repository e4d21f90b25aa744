"""A gate in front of SQLite's transactions, which is shut while the process forks.

SQLite keeps what it knows of a file's locks in memory. A forked process would take its parent's locks for its own: it
would write into a log that the parent may delete, and what it stored would be lost. So nothing of SQLite may be open
when a process forks.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from homing.errors import StoreError


class Gate:
    """Lets any number of threads in until it is shut. Shutting it waits until all threads inside have left."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._shut = 0
        self._mine = threading.local()
        self._left_open = False

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Raises StoreError in a process that was forked while a thread was inside."""
        if self._left_open:
            raise StoreError(
                "a SQLite store cannot be used in a process that was forked in the middle of one of its transactions: "
                "fork outside of transactions, or start the process anew (spawn)"
            )
        depth = getattr(self._mine, "depth", 0)
        with self._changed:
            if not depth:  # who is inside must get out first
                self._changed.wait_for(lambda: not self._shut)
            self._inside += 1
        self._mine.depth = depth + 1
        try:
            yield
        finally:
            self._mine.depth = depth
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    def shut(self, patience: float) -> bool:
        """Lets no thread in any more; returns whether all are out after so many seconds. A thread inside does not
        wait."""
        with self._changed:
            self._shut += 1
            mine = getattr(self._mine, "depth", 0)
            self._left_open = not self._changed.wait_for(lambda: self._inside == 0, 0 if mine else patience)
            return not self._left_open

    def open(self) -> None:
        with self._changed:
            self._shut -= 1
            self._left_open = False
            self._changed.notify_all()

    def start_over(self) -> None:
        """Called in a forked process: no thread is inside, because none came with the fork."""
        left_open = self._left_open
        self.__init__()  # type: ignore[misc]
        self._left_open = left_open
