"""The threads that deliver to several destinations, and several messages to one, at the same time."""

from __future__ import annotations

import contextvars
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Generic, TypeVar

from homing.invocation.fork_safety import start_over_after_fork
from homing.invocation.interrupts import is_user_interrupt

T = TypeVar("T")

log = logging.getLogger(__name__)

_MIN_THREADS = 32
#: Seconds for a delivery that is under way when its chain is closed.
PATIENCE = 30.0
# The same when an error ends it all.
_SHORT_PATIENCE = 1.0


class Backlog(Generic[T]):
    """Things that wait to be worked off, by so many threads at the same time."""

    def __init__(self, work: Callable[[T], object], things: Iterable[T] = (), *, threads: int = 1) -> None:
        self.work = work
        self.threads = threads
        self._things = deque(things)
        self.extend = self._things.extend
        #: The next thing. Raises IndexError when there is none. Thread-safe.
        self.take = self._things.popleft

    def __len__(self) -> int:
        return len(self._things)


class _Job(Generic[T]):
    """A call that is run by whichever is free first: a thread of the pool, or the caller itself.

    So fast calls need not wait for a thread to wake up, and a busy pool delays no call.
    """

    __slots__ = ("_call", "_claim", "_context", "_done", "_result")

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._context = contextvars.copy_context()
        self._claim = threading.Lock()
        self._done = threading.Lock()
        self._done.acquire()
        self._result: T

    def claim(self) -> bool:
        """Whether the caller is the one to run it."""
        return self._claim.acquire(blocking=False)

    def run_here(self) -> T:
        return self._call()

    def run(self) -> None:
        """Runs the call in another thread, in the context it was made in."""
        try:
            self._result = self._context.run(self._call)
        finally:
            self._done.release()

    def wait(self) -> T:
        """The result, when the thread that runs it has it."""
        self._done.acquire()
        return self._result


class _Pool:
    """Daemon threads that run jobs, made as they are needed."""

    def __init__(self, name: str, size: int) -> None:
        self._name = name
        self._size = size
        self._jobs: SimpleQueue[_Job[Any] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._unfinished = 0
        self._threads: list[threading.Thread] = []

    def submit(self, job: _Job[Any]) -> None:
        """Offers a job to the threads; each that is neither finished nor taken back has one of its own."""
        with self._lock:
            self._unfinished += 1
            if len(self._threads) < min(self._unfinished, self._size):
                name = f"homing-{self._name}_{len(self._threads)}"
                self._threads.append(threading.Thread(target=self._work, name=name, daemon=True))
                self._threads[-1].start()
        self._jobs.put(job)

    def finish(self, job: _Job[T]) -> T:
        """The job's result: run here if no thread has begun with it."""
        if not job.claim():
            return job.wait()
        with self._lock:
            self._unfinished -= 1
        return job.run_here()

    def close(self, patience: float) -> None:
        """Ends the threads after what they are doing. One that hangs is left behind; it does not keep the process."""
        for _ in self._threads:
            self._jobs.put(None)
        limit = time.monotonic() + patience
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, limit - time.monotonic()))
        if hanging := [thread.name for thread in self._threads if thread.is_alive()]:
            log.warning("left behind, because what they run does not end: %s", ", ".join(hanging))

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            if job.claim():
                job.run()
                with self._lock:
                    self._unfinished -= 1
            del job


class Workers:
    """Runs calls in parallel, one of them at least in the caller's own thread. Thread-safe.

    Threads are made on first use, and anew in a forked process, which does not inherit them.
    """

    def __init__(self, name: str, width: int) -> None:
        self._name = name
        self._size = max(_MIN_THREADS, width)
        self.start_over()
        start_over_after_fork(self)

    def start_over(self) -> None:
        """Called in a forked process: the threads have stayed in the one it was forked from."""
        self._lock = threading.Lock()
        self._pool: _Pool | None = None

    def run_all(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        """The results of all calls, in order, when the last has ended. The calls must not raise."""
        if not calls:
            return []
        if len(calls) == 1:
            return [calls[0]()]
        jobs = [_Job(call) for call in calls[1:]]
        with self._lock:
            if self._pool is None:
                self._pool = _Pool(self._name, self._size)
            pool = self._pool
            for job in jobs:
                pool.submit(job)
        return [calls[0](), *[pool.finish(job) for job in jobs]]

    def work_off(self, backlogs: Sequence[Backlog[Any]]) -> None:
        """Works these off at the same time. The first error ends all of it, and is raised when the calls under way have
        ended; what interrupts the caller itself is raised at once."""
        errors: list[BaseException] = []
        calls = [partial(_work_off, one, errors) for one in backlogs for _ in range(min(one.threads, len(one)))]
        try:
            self.run_all(calls)
        except BaseException as error:
            errors.append(error)  # the other threads take nothing more
            raise
        if errors:
            raise errors[0]

    def close(self, patience: float | None = None) -> None:
        """Ends the threads after what they are doing; blocking, idempotent."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.close(PATIENCE if patience is None else patience)

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(None if error is None else _SHORT_PATIENCE)


def _work_off(backlog: Backlog[Any], errors: list[BaseException]) -> None:
    """What one thread does of a backlog; its error is put with the others."""
    while not errors:
        try:
            thing = backlog.take()
        except IndexError:
            return
        try:
            backlog.work(thing)
        except BaseException as error:
            if is_user_interrupt(error):
                raise
            errors.append(error)
