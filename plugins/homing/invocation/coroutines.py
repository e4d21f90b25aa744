"""Runs the coroutines of async handlers to completion, from any thread.

All of them share one event loop in a thread of its own, so a client that a handler opened for one message can
be used for the next one, whichever thread of the chain that message runs on.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable
from typing import Any

from homing.invocation.fork_safety import start_over_after_fork


class _LoopThread:
    """An event loop running in a daemon thread; made on first use, and again in a forked process."""

    def __init__(self) -> None:
        self.start_over()
        start_over_after_fork(self)

    def start_over(self) -> None:
        """A forked process inherits the loop object, but not the thread that runs it."""
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="homing-async", daemon=True).start()
            return self._loop


_loop_thread = _LoopThread()


def run(awaitable: Awaitable[Any]) -> Any:
    """Waits for an awaitable of an async handler; returns or raises what it does. Blocking, thread-safe."""
    loop = _loop_thread.loop()
    if _runs_here(loop):
        if asyncio.iscoroutine(awaitable):
            awaitable.close()
        raise RuntimeError("an async handler cannot run another chain with async handlers; use a thread for that")
    future = asyncio.run_coroutine_threadsafe(_settled(awaitable), loop)
    try:
        result, error = future.result()
    except BaseException:
        future.cancel()
        raise
    if error is not None:
        raise error
    return result


def _runs_here(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


async def _settled(awaitable: Awaitable[Any]) -> tuple[Any, BaseException | None]:
    try:
        return await awaitable, None
    except BaseException as error:  # noqa: BLE001 - a SystemExit that left the task would stop the loop for everyone
        return None, error
