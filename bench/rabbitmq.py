"""The RabbitMQ store against bare pipelined pika, in one run: `python -m bench.rabbitmq`.

Bare pika is a loop over ready-made bytes with nothing around it: up to 1,000 confirms in flight on a
SelectConnection; a consumer with prefetch 1,000 that acknowledges every 100 at once. The store does the same with
contents it encodes, ids, headers, leases and decoding. Messages are 1 KiB, persistent, in durable queues. The cases
of a round follow each other in changing order; a ratio is taken within its round.
"""

from __future__ import annotations

import argparse
import json
import random
import secrets
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pika

from homing import open_store
from tests.rabbitmq_server import running_rabbitmq

BAR = 0.7
IN_FLIGHT = 1000
PREFETCH = 1000
ACK_EVERY = 100


def content(number: int) -> dict[str, Any]:
    """About 1 KiB as JSON."""
    return {"number": number, "customer": f"customer-{number % 100}", "paid": True, "note": secrets.token_hex(460)}


class BarePublisher:
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
        while self._sent < len(self._bodies) and self._sent - self._confirmed < IN_FLIGHT:
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
        elif self._sent - self._confirmed <= IN_FLIGHT // 2:
            self._fill()


def bare_drain(url: str, queue: str, count: int) -> float:
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    channel.basic_qos(prefetch_count=PREFETCH)
    started = time.perf_counter()
    for seen, (method, _properties, _body) in enumerate(channel.consume(queue), 1):
        if seen % ACK_EVERY == 0 or seen == count:
            channel.basic_ack(method.delivery_tag, multiple=True)
        if seen == count:
            break
    seconds = time.perf_counter() - started
    connection.close()
    return seconds


def store_many(url: str, contents: list[Any]) -> float:
    with open_store(url) as store:
        store.store("warm-up")  # connected, as the bare loop is
        started = time.perf_counter()
        store.store_many(contents)
        return time.perf_counter() - started


def drain(url: str, count: int) -> float:
    with open_store(url) as store:
        first = store.retrieve()  # connected, as the bare loop is
        assert first is not None
        store.acknowledge(first)
        started, seen = time.perf_counter(), 0
        while seen < count:
            message = store.retrieve()
            if message is not None:
                store.acknowledge(message)
                seen += 1
        return time.perf_counter() - started


def one_round(url: str, queue_type: str, count: int) -> dict[str, float]:
    """Messages per second of each case."""
    name = f"bench_{queue_type}_{secrets.token_hex(4)}"
    ours = f"{url}?store={name}&queue_type={queue_type}&prefetch={PREFETCH}"
    bare = f"{name}_bare"
    contents = [content(number) for number in range(count)]
    bodies = [json.dumps(each).encode() for each in contents]
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        connection.channel().queue_declare(bare, durable=True, arguments={"x-queue-type": queue_type})
    rates: dict[str, float] = {}
    sending: list[tuple[str, Callable[[], float]]] = [
        ("bare publish", lambda: BarePublisher(url, bare, bodies).run()),
        ("store_many", partial(store_many, ours, contents)),
    ]
    receiving: list[tuple[str, Callable[[], float]]] = [
        ("bare drain", partial(bare_drain, url, bare, count)),
        ("retrieve + acknowledge", partial(drain, ours, count)),
    ]
    for cases in (sending, receiving):
        random.shuffle(cases)
        for case, run in cases:
            rates[case] = count / run()
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        for queue in (bare, name, f"{name}.dead"):
            connection.channel().queue_delete(queue)
    return rates


def report(queue_type: str, rounds: list[dict[str, float]]) -> bool:
    """Prints the medians; whether the bar is reached."""
    good = True
    print(f"\n{queue_type} queue: median messages/s (least to most), and the ratio within a round")
    for case, reference in (("store_many", "bare publish"), ("retrieve + acknowledge", "bare drain")):
        ratios = [rates[case] / rates[reference] for rates in rounds]
        for name in (reference, case):
            values = [rates[name] for rates in rounds]
            print(f"  {name:24}{statistics.median(values):>9,.0f} ({min(values):,.0f} to {max(values):,.0f})")
        ratio = statistics.median(ratios)
        good = good and ratio >= BAR
        print(f"  {'ratio':24}{ratio:>9.2f} ({min(ratios):.2f} to {max(ratios):.2f}), bar {BAR}")
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=20_000, help="messages per case")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    rounds: dict[str, list[dict[str, float]]] = {"quorum": [], "classic": []}
    with running_rabbitmq() as server:
        for _ in range(options.rounds):
            for queue_type, done in rounds.items():
                done.append(one_round(server.url, queue_type, options.count))
    good = [report(queue_type, done) for queue_type, done in rounds.items()]
    return 0 if all(good) else 1


if __name__ == "__main__":
    raise SystemExit(main())
