"""Queues that do the same work: `python contestants.py <name> <url>`, in whichever environment has the package.

Reads "enqueue 100" or "take 100" from standard input, one message at a time, and answers with the seconds it took.
Every one of them is durable and confirmed when its enqueue returns; Celery and Dramatiq are told to wait for that.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

CONTENT = {"number": 7, "text": "x" * 1000}
Contestant = tuple[Callable[[], Any], Callable[[], Any] | None]


def homing(url: str) -> Contestant:
    from homing import open_store

    store = open_store(url)

    def take() -> None:
        message = None
        while message is None:
            message = store.retrieve()
        store.acknowledge(message)

    return lambda: store.store(CONTENT), take


def litequeue(url: str) -> Contestant:
    import json

    from litequeue import LiteQueue

    queue = LiteQueue(url)
    queue.conn.execute("PRAGMA synchronous=FULL")
    text = json.dumps(CONTENT)

    def take() -> None:
        queue.done(queue.pop().message_id)

    return lambda: queue.put(text), take


def celery(url: str) -> Contestant:
    from celery import Celery

    app = Celery("bench", broker=url)
    app.conf.broker_transport_options = {"confirm_publish": True}
    app.conf.task_ignore_result = True
    task = app.signature("bench.task", args=[CONTENT])
    return task.apply_async, None


def dramatiq(url: str) -> Contestant:
    import dramatiq as package
    from dramatiq.brokers.rabbitmq import RabbitmqBroker

    broker = RabbitmqBroker(url=url, confirm_delivery=True, middleware=[])
    actor = package.actor(lambda _content: None, actor_name="bench", broker=broker)
    return lambda: actor.send(CONTENT), None


def main() -> None:
    name, url = sys.argv[1:]
    enqueue, take = {"homing": homing, "litequeue": litequeue, "celery": celery, "dramatiq": dramatiq}[name](url)
    for line in sys.stdin:
        verb, count = line.split()
        work = enqueue if verb == "enqueue" else take
        assert work is not None
        started = time.perf_counter()
        for _ in range(int(count)):
            work()
        print(time.perf_counter() - started, flush=True)


if __name__ == "__main__":
    main()
