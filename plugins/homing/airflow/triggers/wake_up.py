"""WakeUpCall: sleeping on the event loop until a store says that it has something."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextlib import suppress
from types import TracebackType

from homing.listener.wake_up import Waker
from homing.store import Store


class WakeUpCall:
    """A block in which to sleep. Stores that do not wake are left to the caller's own looks, as is a call that is lost.

    Waiting for a store takes a thread each, of its own: those of the event loop are few, and all triggers share them.
    Leaving the block ends the threads.
    """

    def __init__(
        self, stores: Collection[Store], longest_pause: float, shares: Collection[Collection[int] | None] = ()
    ) -> None:
        """`shares` says, store by store, which partitions are waited for."""
        self._loop = asyncio.get_running_loop()
        self._is_called = asyncio.Event()
        self._wakers = [
            Waker(store, self._call, longest_pause, {} if share is None else {"partitions": share})
            for store, share in zip(stores, shares or [None] * len(stores), strict=False)
            if store.wakes
        ]

    def get_ready(self) -> None:
        """Before the caller looks into the stores: what comes from now on ends the next sleep."""
        self._is_called.clear()

    async def sleep(self, seconds: float) -> None:
        """At most so long, after the caller found nothing due."""
        for waker in self._wakers:
            waker.listen()
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._is_called.wait(), seconds)

    def answered(self) -> None:
        """Something was due: a call in vain makes the next come later, and this was none."""
        for waker in self._wakers:
            waker.answered()

    def __enter__(self) -> WakeUpCall:
        for waker in self._wakers:
            waker.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for waker in self._wakers:
            waker.stop()

    def _call(self) -> None:
        self._loop.call_soon_threadsafe(self._is_called.set)
