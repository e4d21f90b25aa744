"""litequeue, told to wait for the disk as the others do. It pops one message at a time."""

from __future__ import annotations

import json

import litequeue

from bench.contestants.contestant import Contents, Contestant, timed


class LiteQueue(Contestant):
    def __init__(self, url: str) -> None:
        self._queue = litequeue.LiteQueue(url)
        self._queue.conn.execute("pragma synchronous=full")

    def enqueue(self, contents: Contents) -> float:
        return timed(lambda: [self._queue.put(json.dumps(content)) for content in contents])

    def bulk(self, contents: Contents) -> float:
        def work() -> None:
            with self._queue.transaction():
                for content in contents:
                    self._queue.put(json.dumps(content))

        return timed(work)

    def take(self, count: int, size: int) -> float:
        def work() -> None:
            for _ in range(count):
                message = self._queue.pop()
                json.loads(message.data)
                self._queue.done(message.message_id)

        return timed(work)

    def empty(self) -> None:
        self._queue.conn.execute("delete from Queue where status = 0")
