"""Waker: says when a store has something, where the store says so by itself."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from homing.invocation.error_info import sign_of
from homing.listener.config import name_of
from homing.store import Store

log = logging.getLogger(__name__)

_WAIT = 60.0  # seconds: how long does not matter, as the listener also looks at its own intervals
_LONGEST_PAUSE = 1.0  # seconds after which a store that called in vain, or is away, is listened to again
_FIRST_PAUSE = 0.01


_EVERYTHING: Mapping[str, Any] = {}


class Waker:
    """Waits in a thread of its own, which does not keep a process alive. Thread-safe.

    It calls `wake` once for each `listen`, and may call it in vain: another consumer was quicker, or the store is
    mistaken. Nor can it be relied on: the listener also looks at its own intervals.
    """

    def __init__(
        self, store: Store, wake: Callable[[], None], longest_pause: float, share: Mapping[str, Any] = _EVERYTHING
    ) -> None:
        """`share` says which part of the store it waits for: the arguments of its `wait`."""
        self._store = store
        self._wake = wake
        self._share = share
        self._longest_pause = min(longest_pause, _LONGEST_PAUSE)
        self._changed = threading.Condition()
        self._is_wanted = False
        self._is_ended = False
        self._in_vain = 0
        self._thread = threading.Thread(target=self._run, name=f"homing-{name_of(store)}-waker", daemon=True)

    def start(self) -> None:
        if self._store.wakes:
            self._thread.start()

    def listen(self) -> None:
        """To be called when the store had nothing: it wakes when there is something, or was in the meantime."""
        with self._changed:
            self._is_wanted = True
            self._changed.notify_all()

    def answered(self) -> None:
        """It did not wake in vain."""
        self._in_vain = 0

    def stop(self) -> None:
        """It does not wake any more once this returns, and its thread ends at once. Idempotent."""
        with self._changed:
            self._is_ended = True
            self._changed.notify_all()
        if self._store.wakes:
            self._store.wake()

    def _run(self) -> None:
        while self._is_listened_to():
            try:
                has_come = self._store.wait(_WAIT, ended=lambda: self._is_ended, **self._share)
            except Exception as error:  # noqa: BLE001 - a store that is away is waited for
                log.debug("cannot wait for store %s, trying again: %s", name_of(self._store), sign_of(error))
                self._in_vain += 1
                continue
            with self._changed:
                if has_come and not self._is_ended:
                    self._is_wanted = False
                    self._in_vain += 1
                    self._wake()

    def _is_listened_to(self) -> bool:
        """Blocks until the listener listens, and longer each time it was woken in vain; False at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_wanted or self._is_ended)
            if self._in_vain:
                pause = min(self._longest_pause, _FIRST_PAUSE * 2 ** min(self._in_vain, 20))
                self._changed.wait_for(lambda: self._is_ended, pause)
            return not self._is_ended
