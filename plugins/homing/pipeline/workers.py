"""The threads that deliver to several destinations at once."""

from __future__ import annotations

import contextvars
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

T = TypeVar("T")

_MIN_THREADS = 32


class _Job(Generic[T]):
    """A call that whoever comes first runs: a thread of the pool, or the caller when it is free itself.

    So fast calls need not wait for a thread to wake up, and a pool that is busy holds nobody up.
    """

    __slots__ = ("_call", "_claim", "future")

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._claim = threading.Lock()
        self.future: Future[list[T]]

    def run(self) -> list[T]:
        """The result, in a list that is empty when somebody else has claimed the call."""
        return [self._call()] if self._claim.acquire(blocking=False) else []

    def result(self) -> T:
        """Runs the call here, or waits for the thread that does."""
        return (self.run() or self.future.result())[0]


class Workers:
    """Runs calls in parallel, one of them at least in the caller's own thread. Thread-safe.

    Threads are made on first use, and anew in a forked process, which does not inherit them.
    """

    def __init__(self, name: str, width: int) -> None:
        self._name = name
        self._size = max(_MIN_THREADS, width)
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._process = 0

    def run_all(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        """The results of all calls, in order, when the last has ended. The calls must not raise."""
        if not calls:
            return []
        jobs = [self._submit(call) for call in calls[1:]]
        return [calls[0](), *(job.result() for job in jobs)]

    def close(self) -> None:
        """Ends the threads after what they are doing; blocking, idempotent."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=True)

    def _submit(self, call: Callable[[], T]) -> _Job[T]:
        job = _Job(call)
        context = contextvars.copy_context()
        with self._lock:
            if self._pool is None or self._process != os.getpid():
                self._pool = ThreadPoolExecutor(self._size, thread_name_prefix=f"homing-{self._name}")
                self._process = os.getpid()
            job.future = self._pool.submit(context.run, job.run)
        return job
