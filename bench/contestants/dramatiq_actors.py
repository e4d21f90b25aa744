"""Dramatiq on RabbitMQ: confirmed publishing, one worker process of eight threads, as its command line starts them."""

from __future__ import annotations

import secrets
import time
from typing import Any

import dramatiq
from dramatiq.brokers.rabbitmq import RabbitmqBroker

from bench.contestants.contestant import Contents, Contestant, timed


class Dramatiq(Contestant):
    def __init__(self, url: str) -> None:
        self._name = f"dramatiq_{secrets.token_hex(4)}"
        self._done: list[float] = []
        self._broker = RabbitmqBroker(url=url, confirm_delivery=True, middleware=[])
        self._actor = dramatiq.actor(self._count, actor_name="bench", queue_name=self._name, broker=self._broker)

    def _count(self, content: dict[str, Any]) -> None:
        self._done.append(time.perf_counter())

    def enqueue(self, contents: Contents) -> float:
        return timed(lambda: [self._actor.send(content) for content in contents])

    bulk = enqueue

    def take(self, count: int, size: int) -> float:
        self._done.clear()
        worker = dramatiq.Worker(self._broker, queues={self._name}, worker_threads=8)
        worker.start()
        deadline = time.monotonic() + 60
        while len(self._done) < count:
            if time.monotonic() > deadline:
                raise TimeoutError(f"Dramatiq's worker ran {len(self._done)} of {count} actors in a minute")
            time.sleep(0.001)
        worker.stop()
        # From the first to the last, so that neither starting nor stopping is in the figure.
        return (self._done[-1] - self._done[0]) * count / (count - 1)

    def empty(self) -> None:
        self._broker.flush(self._name)
