"""procrastinate: its job manager, without the worker that would call functions. It fetches one job at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import procrastinate
from procrastinate.jobs import Status

from bench.contestants.contestant import Contents, Contestant, timed


class Procrastinate(Contestant):
    def __init__(self, url: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url, min_size=1, max_size=1))
        self._task = self._app.task(name="bench", queue="bench")(lambda **_: None)
        self._run(self._app.open_async())
        self._run(self._app.schema_manager.apply_schema_async())
        self._worker = self._run(self._app.job_manager.register_worker())

    def enqueue(self, contents: Contents) -> float:
        async def work() -> None:
            for content in contents:
                await self._task.defer_async(content=content)

        return timed(lambda: self._run(work()))

    def bulk(self, contents: Contents) -> float:
        calls = [{"content": content} for content in contents]
        return timed(lambda: self._run(self._task.batch_defer_async(*calls)))

    def take(self, count: int, size: int) -> float:
        async def work() -> None:
            manager = self._app.job_manager
            for _ in range(count):
                job = await manager.fetch_job(["bench"], self._worker)
                assert job is not None
                await manager.finish_job(job, Status.SUCCEEDED, delete_job=False)

        return timed(lambda: self._run(work()))

    def empty(self) -> None:
        self._run(self._app.connector.execute_query_async("delete from procrastinate_jobs where status = 'todo'"))

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._loop.run_until_complete(work)
