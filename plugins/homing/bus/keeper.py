"""Keeping locks while the work they protect goes on."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from homing.bus.broker import ReceiveLink
from homing.bus.message import Message
from homing.errors import HomingError, StoreUnavailableError

log = logging.getLogger(__name__)

_RENEW_AT = 1 / 3  # of a lock's duration: two failures are survived


@dataclass
class _Kept:
    message: Message
    next: float
    every: float
    until: float


class LockKeeper:
    """Renews the locks of received messages, each for at most so many seconds, in a thread of its own.

    A lock that is lost is not renewed any more; whoever settles its message is told so by the store.
    """

    def __init__(self, link: ReceiveLink, longest: float) -> None:
        self._link = link
        self._longest = longest
        self._kept: dict[str, _Kept] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False

    def keep(self, messages: Sequence[Message], lock_duration: float) -> None:
        now, every = time.monotonic(), lock_duration * _RENEW_AT
        if self._longest <= every:
            return
        with self._changed:
            for message in messages:
                self._kept[str(message.lock_token)] = _Kept(message, now + every, every, now + self._longest)
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="homing-bus-locks", daemon=True)
                self._thread.start()
            self._changed.notify()

    def forget(self, message: Message) -> None:
        with self._changed:
            self._kept.pop(str(message.lock_token), None)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._kept.clear()
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(timeout=10)

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._closed:
                    return
                now = time.monotonic()
                due = [token for token, kept in self._kept.items() if kept.next <= now]
                if not due:
                    pause = min((kept.next - now for kept in self._kept.values()), default=None)
                    self._changed.wait(pause)
                    continue
            for token in due:
                self._renew(token)

    def _renew(self, token: str) -> None:
        with self._changed:
            kept = self._kept.get(token)
        if kept is None:
            return
        now = time.monotonic()
        gone = now >= kept.until
        try:
            if not gone:
                self._link.renew_lock(kept.message)
                kept.next = now + kept.every
        except StoreUnavailableError as error:
            kept.next = now + kept.every / 2
            log.warning("the lock on message %s was not renewed yet: %s", kept.message.message_id, error)
        except HomingError as error:
            gone = True
            log.warning("the lock on message %s is not renewed any more: %s", kept.message.message_id, error)
        if gone:
            self.forget(kept.message)
