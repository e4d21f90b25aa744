"""pgmq as people use it: through its Python client."""

from __future__ import annotations

import psycopg
from pgmq import PGMQueue

from bench.contestants.contestant import Contents, Contestant, timed
from bench.contestants.pgmq_sql import install


class Deleting(Contestant):
    """Reads and deletes."""

    finish = "delete_batch"

    def __init__(self, url: str) -> None:
        install(url).close()
        where = psycopg.conninfo.conninfo_to_dict(url)
        self._queue = PGMQueue(
            host=where["host"],
            port=str(where["port"]),
            database=where["dbname"],
            username=where["user"],
            init_extension=False,
        )

    def enqueue(self, contents: Contents) -> float:
        return timed(lambda: [self._queue.send("bench", content) for content in contents])

    def bulk(self, contents: Contents) -> float:
        return timed(lambda: self._queue.send_batch("bench", contents))

    def take(self, count: int, size: int) -> float:
        return timed(lambda: [self._cycle(size) for _ in range(count // size)])

    def empty(self) -> None:
        self._queue.purge("bench")

    def _cycle(self, size: int) -> None:
        messages = self._queue.read_batch("bench", vt=60, batch_size=size)
        assert len(messages) == size
        getattr(self._queue, self.finish)("bench", [message.msg_id for message in messages])


class Archiving(Deleting):
    """Reads and archives."""

    finish = "archive_batch"
