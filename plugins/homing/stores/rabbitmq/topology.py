"""The queues of a store, and how a message waits in them.

A store has a queue of its own name and one for what is dead, `<store>.dead`. A message that is to wait goes through
`<store>.delay.<k>`, queues in which everything waits 0.1 s times 2 to the k: the routing key spells the delay in
binary, each level either keeps the message for its time or passes it on, and the last hands it to the store's queue.
Within a level all wait equally long, so nobody waits behind a slower one; the number of levels is fixed, so there are
never more than a few queues, whatever times are asked for. Levels are quorum queues that dead-letter at least once:
a message leaves one only when the next has it.
"""

from __future__ import annotations

import math
from typing import Any

from homing.stores.rabbitmq.link import Link
from homing.stores.rabbitmq.options import CLASSIC, QUORUM

#: The shortest wait, in seconds; every wait is rounded up to a multiple of it.
UNIT = 0.1
#: RabbitMQ keeps a time to live in 32 bits of milliseconds, which the topmost level just fits.
LEVELS = 26
#: The longest wait in one go, in seconds; who wants longer waits again.
LONGEST = (2**LEVELS - 1) * UNIT

DEAD_SUFFIX = ".dead"
# Our own limit comes long before; this one keeps brokers with a lower default from having their say.
_DELIVERY_LIMIT = 1000


def dead_queue(name: str) -> str:
    """Where the dead of this store go; those of a dead-letter queue stay in it."""
    return name if name.endswith(DEAD_SUFFIX) else f"{name}{DEAD_SUFFIX}"


def delay_name(name: str, level: int) -> str:
    """The name of a level's queue, and of the exchange in front of it."""
    return f"{name}.delay.{level}"


def delay_route(name: str, seconds: float) -> tuple[str, str, int]:
    """(exchange, routing key, topmost level) for a message that is to wait so long, at most LONGEST."""
    units = max(1, min(math.ceil(round(seconds / UNIT, 6)), 2**LEVELS - 1))
    level = units.bit_length() - 1
    return delay_name(name, level), ".".join(f"{units:0{LEVELS}b}"), level


def declare_store(link: Link, name: str, queue_type: str) -> None:
    """Makes the store's two queues; does nothing where they are."""
    declare = link.channel.queue_declare
    dead = dead_queue(name)
    link.call(declare, queue=dead, durable=True, arguments={"x-queue-type": queue_type})
    if dead == name:
        return
    # The broker itself dead-letters too, should a policy limit the queue: nothing is dropped.
    arguments: dict[str, Any] = {
        "x-queue-type": queue_type,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": dead,
    }
    if queue_type != CLASSIC:
        arguments |= {"x-delivery-limit": _DELIVERY_LIMIT, **_AT_LEAST_ONCE}
    link.call(declare, queue=name, durable=True, arguments=arguments)


def declare_level(link: Link, name: str, level: int) -> None:
    """Makes one level of waiting; the level below it must be there."""
    channel, here = link.channel, delay_name(name, level)
    below = delay_name(name, level - 1) if level else ""
    arguments: dict[str, Any] = {
        "x-queue-type": QUORUM,
        "x-message-ttl": round(UNIT * 1000) * 2**level,
        "x-dead-letter-exchange": below,
        **_AT_LEAST_ONCE,
    }
    if not level:
        arguments["x-dead-letter-routing-key"] = name
    link.call(channel.exchange_declare, exchange=here, exchange_type="topic", durable=True)
    link.call(channel.queue_declare, queue=here, durable=True, arguments=arguments)
    link.call(channel.queue_bind, queue=here, exchange=here, routing_key=_pattern(level, "1"))
    if level:
        link.call(channel.exchange_bind, destination=below, source=here, routing_key=_pattern(level, "0"))
    else:
        link.call(channel.queue_bind, queue=name, exchange=here, routing_key=_pattern(level, "0"))


_AT_LEAST_ONCE = {"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}


def _pattern(level: int, bit: str) -> str:
    """Matches the routing keys that have this bit at this level."""
    return ".".join(["*"] * (LEVELS - 1 - level) + [bit] + ["#"] * bool(level))
