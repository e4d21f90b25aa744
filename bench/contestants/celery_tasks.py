"""Celery on RabbitMQ: confirmed publishing, late acknowledgement, one worker that runs tasks in its own process."""

from __future__ import annotations

import secrets
import threading
import time
from typing import Any

import celery
from kombu import Queue

from bench.contestants.contestant import Contents, Contestant, timed


class Celery(Contestant):
    """The worker starts to consume only when `take` tells it to, so that filling the queue is not in the figure."""

    def __init__(self, url: str) -> None:
        self._name = f"celery_{secrets.token_hex(4)}"
        self._done: list[float] = []
        self._app = app = celery.Celery("bench", broker=url)
        app.conf.update(
            broker_transport_options={"confirm_publish": True},
            task_ignore_result=True,
            task_acks_late=True,
            task_default_queue=self._name,
            worker_prefetch_multiplier=100,
            worker_redirect_stdouts=False,
            task_queues=[Queue(_idle(self._name))],
            broker_connection_retry_on_startup=True,
        )
        done = self._done

        @app.task(name="bench.task")
        def task(_content: dict[str, Any]) -> None:
            done.append(time.perf_counter())

        self._task = task
        self._queue = Queue(self._name)(app.connection().channel())
        self._queue.declare()
        self._worker: Any = None

    def enqueue(self, contents: Contents) -> float:
        return timed(lambda: [self._task.apply_async((content,)) for content in contents])

    bulk = enqueue

    def take(self, count: int, size: int) -> float:
        if self._worker is None:
            self._start_worker()
        self._done.clear()
        self._app.control.add_consumer(self._name, reply=True, limit=1, timeout=10)
        deadline = time.monotonic() + 60
        while len(self._done) < count:
            if time.monotonic() > deadline:
                raise TimeoutError(f"Celery's worker ran {len(self._done)} of {count} tasks in a minute")
            time.sleep(0.001)
        self._app.control.cancel_consumer(self._name, reply=True, limit=1, timeout=10)
        time.sleep(0.1)  # it answers just before it does so
        # From the first to the last, so that neither starting nor stopping is in the figure.
        return (self._done[-1] - self._done[0]) * count / (count - 1)

    def empty(self) -> None:
        self._queue.purge()

    def _start_worker(self) -> None:
        self._worker = self._app.Worker(
            pool="solo",
            queues=[_idle(self._name)],
            loglevel="CRITICAL",
            without_mingle=True,
            without_gossip=True,
            quiet=True,
        )
        threading.Thread(target=self._worker.start, daemon=True).start()
        deadline = time.monotonic() + 30
        while not self._app.control.ping(timeout=0.5):
            if time.monotonic() > deadline:
                raise TimeoutError("Celery's worker did not start in half a minute")


def _idle(name: str) -> str:
    """The queue of a worker that is to do nothing: without one, it would consume from every queue it knows."""
    return f"{name}_idle"
