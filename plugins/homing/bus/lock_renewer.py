"""Renews locks while the work that they protect goes on."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from homing.errors import LeaseLostError, NotInFlightError

log = logging.getLogger(__name__)

_RENEW_AT = 1 / 3  # of a lock's duration: two failures are survived
_SHORTEST = 0.1  # seconds between two renewals, even if a wrong clock makes a lock look shorter


@dataclass
class _Kept:
    lock: str
    renew: Callable[[], float]
    next: float
    every: float
    until: float


class LockKeeper:
    """Renews the locks of received messages and sessions, each for at most `longest` seconds, in its own thread.

    A lost lock is not renewed any more; settling its message raises an error from the store.
    """

    def __init__(self, longest: float) -> None:
        self._longest = longest
        self._closed = False
        self.start_over()

    def start_over(self) -> None:
        """Also called in a forked process: the locks kept so far are for the parent to renew."""
        self._kept: dict[str, _Kept] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def keep(self, key: str, lock: str, renew: Callable[[], float], *, lasts: float, waiting: float = 0.0) -> None:
        """Keeps a lock that ends in `lasts` seconds by calling `renew`, which returns the seconds it lasts from then
        on.

        For a lock that is kept already, the time starts anew. `waiting` is added to the seconds it is kept for.
        """
        now, every, longest = time.monotonic(), lasts * _RENEW_AT, self._longest + waiting
        with self._changed:
            if key in self._kept:
                self._kept[key].until = now + longest
            elif longest > every and not self._closed:
                self._kept[key] = _Kept(lock, renew, now + every, every, now + longest)
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="homing-bus-locks", daemon=True)
                    self._thread.start()
                self._changed.notify()

    def forget(self, key: str) -> None:
        with self._changed:
            self._kept.pop(key, None)

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
                due = [key for key, kept in self._kept.items() if kept.next <= now]
                if not due:
                    pause = min((kept.next - now for kept in self._kept.values()), default=None)
                    self._changed.wait(pause)
                    continue
            for key in due:
                self._renew(key)

    def _renew(self, key: str) -> None:
        with self._changed:
            kept = self._kept.get(key)
            if kept is not None and time.monotonic() >= kept.until:
                del self._kept[key]
                return
        if kept is None:
            return
        try:
            kept.every = max(kept.renew() * _RENEW_AT, _SHORTEST)
        except (LeaseLostError, NotInFlightError) as error:
            self.forget(key)
            log.warning("the lock on %s is not renewed any more: %s", kept.lock, error)
        except Exception as error:  # noqa: BLE001 - whatever it is, this lock is tried again and the others are kept
            kept.every = max(kept.every / 2, _SHORTEST)
            log.warning("the lock on %s was not renewed yet: %s", kept.lock, error)
        kept.next = time.monotonic() + kept.every
