"""Homing's SQL store: SQLite and PostgreSQL."""

from __future__ import annotations

from bench.contestants.contestant import Contents, Contestant, timed
from homing import open_store


class HomingSql(Contestant):
    def __init__(self, url: str) -> None:
        self._store = open_store(url)

    def enqueue(self, contents: Contents) -> float:
        return timed(lambda: [self._store.store(content) for content in contents])

    def bulk(self, contents: Contents) -> float:
        return timed(lambda: self._store.store_many(contents))

    def take(self, count: int, size: int) -> float:
        def work() -> None:
            for _ in range(count // size):
                claimed = self._store.claim(size, lease=60)
                assert len(claimed) == size
                self._store.settle(claimed)

        return timed(work)

    def empty(self) -> None:
        while claimed := self._store.claim(1_000, lease=60):
            self._store.settle(claimed)
