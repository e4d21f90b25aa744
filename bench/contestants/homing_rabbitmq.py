"""Homing's RabbitMQ store."""

from __future__ import annotations

from bench.contestants.contestant import Contents, Contestant, timed
from homing import open_store
from homing.store import Store


class HomingRabbitMQ(Contestant):
    """The URL says which type of queue. `take` opens a store whose prefetch is the size."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._store = open_store(url)

    def enqueue(self, contents: Contents) -> float:
        return timed(lambda: [self._store.store(content) for content in contents])

    def bulk(self, contents: Contents) -> float:
        return timed(lambda: self._store.store_many(contents))

    def fill(self, count: int, contents: Contents) -> None:
        self._store.store_many([*contents, "connected"])

    def take(self, count: int, size: int) -> float:
        with open_store(f"{self._url}&prefetch={size}") as store:
            _take(store, 1)  # connected, as the bare loop is
            return timed(lambda: _take(store, count))

    def empty(self) -> None:
        # What was confirmed is in the queue: a store that has nothing yet is asked again.
        idle = 0
        with open_store(f"{self._url}&prefetch=1000") as store:
            while idle < 20:  # noqa: PLR2004
                message = store.retrieve()
                idle = 0 if message else idle + 1
                if message:
                    store.acknowledge(message)


def _take(store: Store, count: int) -> None:
    seen = 0
    while seen < count:
        message = store.retrieve()
        if message is not None:
            store.acknowledge(message)
            seen += 1
