"""WakeUpCall: sleeping on the event loop until a store says that it has something."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextlib import suppress
from types import TracebackType

from homing.listener.wake_up import Waker
from homing.store import Store


class WakeUpCall:
    """Ends the caller's sleep when a store says that it has a message. A context manager.

    Not every store says so, and what it says may be lost. So the caller must still look into the stores after each
    sleep. Each store that wakes is waited for in a thread of its own: the event loop's threads are few, and all
    triggers share them. Leaving the block ends the threads.
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
        """To be called before a look into the stores: a message that comes from now on ends the next sleep."""
        self._is_called.clear()

    async def sleep(self, seconds: float) -> None:
        """Sleeps for at most so many seconds. To be called when the caller found nothing due."""
        for waker in self._wakers:
            waker.listen()
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._is_called.wait(), seconds)

    def answered(self) -> None:
        """To be called when something was due: the stores did not wake in vain.

        A store that wakes in vain is listened to again only after a pause, which grows each time until this is called.
        """
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
