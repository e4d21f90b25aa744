"""What a listener counts."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass

# What can become of a message in the hands of a listener.
PROCESSED = "processed"
RETRIED = "retried"
DEAD_LETTERED = "dead_lettered"
DROPPED = "dropped"
RELEASED = "released"
LOST_LEASES = "lost_leases"


@dataclass(frozen=True)
class ListenerMetrics:
    """Numbers since the listener was made, and of this moment.

    `processed` messages were handled and acknowledged. `retried` counts attempts that failed and were followed by
    another. Then what became of messages that failed for good: `dead_lettered`, `dropped`, `released`. `lost_leases`
    counts messages that another consumer may have handled too. `in_flight` is how many the listener holds now.
    `oldest_age` is for how many seconds the longest-waiting message has been due, be it in the store, where that can
    tell, or in the listener's hand; None when there is none.
    """

    processed: int = 0
    retried: int = 0
    dead_lettered: int = 0
    dropped: int = 0
    released: int = 0
    lost_leases: int = 0
    in_flight: int = 0
    oldest_age: float | None = None


class Counts:
    """The running numbers. Thread-safe."""

    def __init__(self) -> None:
        self._counter: Counter[str] = Counter()
        self.start_over()

    def start_over(self) -> None:
        """Called in a forked process, which counts on from here."""
        self._lock = threading.Lock()

    def add(self, outcome: str) -> None:
        with self._lock:
            self._counter[outcome] += 1

    def read(self, in_flight: int, oldest_age: float | None) -> ListenerMetrics:
        with self._lock:
            return ListenerMetrics(**self._counter, in_flight=in_flight, oldest_age=oldest_age)
