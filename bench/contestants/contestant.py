"""What a queue must be able to do to take part."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

Contents = list[dict[str, Any]]


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


class Contestant(ABC):
    """One queue. Durable and confirmed when `enqueue` and `bulk` return; `take` acknowledges what it took.

    Each verb returns the seconds it took for all of the messages together.
    """

    @abstractmethod
    def enqueue(self, contents: Contents) -> float:
        """Puts them in one by one, each durable before the next."""

    @abstractmethod
    def bulk(self, contents: Contents) -> float:
        """Puts them in the fastest way this queue offers."""

    @abstractmethod
    def take(self, count: int, size: int) -> float:
        """Takes and acknowledges `count` waiting messages, `size` at a time where the queue can do that."""

    def fill(self, count: int, contents: Contents) -> None:
        """Makes `count` messages wait, for `take`."""
        self.bulk(contents[:count])

    @abstractmethod
    def empty(self) -> None:
        """Removes what is still waiting."""
