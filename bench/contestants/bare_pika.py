"""The floor on RabbitMQ: pika with nothing around it.

Many at a time: up to 1,000 confirms in flight on a SelectConnection, over bytes that are ready before the clock starts.
Taking: a consumer whose prefetch is the size, which acknowledges a tenth of that at once.
"""

from __future__ import annotations

import json
import secrets
import time
from typing import Any

import pika

from bench.contestants.contestant import Contents, Contestant, timed

_IN_FLIGHT = 1_000
_PERSISTENT = pika.BasicProperties(delivery_mode=2)


class _Pika(Contestant):
    queue_type: str

    def __init__(self, url: str) -> None:
        self._url = url
        self._queue = f"bare_{secrets.token_hex(4)}"
        self._channel = pika.BlockingConnection(pika.URLParameters(url)).channel()
        self._channel.queue_declare(self._queue, durable=True, arguments={"x-queue-type": self.queue_type})
        self._channel.confirm_delivery()

    def enqueue(self, contents: Contents) -> float:
        def work() -> None:
            for content in contents:
                body = json.dumps(content).encode()
                self._channel.basic_publish("", self._queue, body, _PERSISTENT, mandatory=True)

        return timed(work)

    def bulk(self, contents: Contents) -> float:
        return Publisher(self._url, self._queue, [json.dumps(content).encode() for content in contents]).run()

    def fill(self, count: int, contents: Contents) -> None:
        self.bulk([*contents, {"connected": True}])

    def take(self, count: int, size: int) -> float:
        connection = pika.BlockingConnection(pika.URLParameters(self._url))
        channel = connection.channel()
        channel.basic_qos(prefetch_count=size)
        messages = channel.consume(self._queue)
        every = max(1, size // 10)

        def work(wanted: int) -> None:
            for seen, (method, _properties, _body) in enumerate(messages, 1):
                if seen % every == 0 or seen == wanted:
                    channel.basic_ack(method.delivery_tag, multiple=True)
                if seen == wanted:
                    return

        work(1)
        seconds = timed(lambda: work(count))
        connection.close()
        return seconds

    def empty(self) -> None:
        self._channel.queue_purge(self._queue)


class Quorum(_Pika):
    queue_type = "quorum"


class Classic(_Pika):
    queue_type = "classic"


class Publisher:
    """As fast as pika can send with nothing lost: confirms, many in flight."""

    def __init__(self, url: str, queue: str, bodies: list[bytes]) -> None:
        self._queue = queue
        self._bodies = bodies
        self._sent = self._confirmed = 0
        self._channel: Any = None
        self._connection = pika.SelectConnection(pika.URLParameters(url), on_open_callback=self._on_open)

    def run(self) -> float:
        self._connection.ioloop.start()
        return self._seconds

    def _on_open(self, connection: Any) -> None:
        connection.channel(on_open_callback=self._on_channel)

    def _on_channel(self, channel: Any) -> None:
        self._channel = channel
        channel.confirm_delivery(self._on_confirm, self._begin)

    def _begin(self, _frame: Any) -> None:
        self._started = time.perf_counter()
        self._fill()

    def _fill(self) -> None:
        while self._sent < len(self._bodies) and self._sent - self._confirmed < _IN_FLIGHT:
            properties = pika.BasicProperties(delivery_mode=2, message_id=f"m{self._sent}")
            self._channel.basic_publish("", self._queue, self._bodies[self._sent], properties, mandatory=True)
            self._sent += 1

    def _on_confirm(self, frame: Any) -> None:
        method = frame.method
        assert method.NAME == "Basic.Ack"
        self._confirmed = method.delivery_tag if method.multiple else self._confirmed + 1
        if self._confirmed >= len(self._bodies):
            self._seconds = time.perf_counter() - self._started
            self._connection.close()
            self._connection.ioloop.stop()
        elif self._sent - self._confirmed <= _IN_FLIGHT // 2:
            self._fill()
