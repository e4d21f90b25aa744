"""PGQueuer: its own queries on asyncpg, without the manager that would call functions."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Coroutine
from datetime import timedelta
from typing import Any

import asyncpg
from pgqueuer.ports.repository import EntrypointExecutionParameter
from pgqueuer.queries import Queries

from bench.contestants.contestant import Contents, Contestant, timed

_ENTRY = "bench"


class PgQueuer(Contestant):
    def __init__(self, url: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._queries = Queries.from_asyncpg_connection(self._run(asyncpg.connect(url)))
        self._run(self._queries.install())
        self._manager = uuid.uuid4()

    def enqueue(self, contents: Contents) -> float:
        async def work() -> None:
            for content in contents:
                await self._queries.enqueue(_ENTRY, json.dumps(content).encode())

        return timed(lambda: self._run(work()))

    def bulk(self, contents: Contents) -> float:
        def work() -> None:
            bodies = [json.dumps(content).encode() for content in contents]
            self._run(self._queries.enqueue([_ENTRY] * len(bodies), bodies, [0] * len(bodies)))

        return timed(work)

    def take(self, count: int, size: int) -> float:
        async def work() -> None:
            entries = {_ENTRY: EntrypointExecutionParameter(concurrency_limit=0)}
            for _ in range(count // size):
                jobs = await self._queries.dequeue(size, entries, self._manager, None, timedelta(seconds=60))
                assert len(jobs) == size
                await self._queries.log_jobs([(job, "successful", None) for job in jobs])

        return timed(lambda: self._run(work()))

    def empty(self) -> None:
        self._run(self._queries.clear_queue())

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._loop.run_until_complete(work)
