"""The queues of a store, and how a message waits in them.

A store has a queue of its own name and one for what is dead, `<store>.dead`. A message that is to wait goes through
`<store>.delay.<k>`, queues in which everything waits 0.1 s times 2 to the k: the routing key spells the delay in
binary, each level either keeps the message for its time or passes it on, and the last hands it to the store's queue.
Within a level all wait equally long, so no message waits behind a slower one; the number of levels is fixed, so there
are never more than a few queues, whatever times are asked for. Levels are quorum queues that dead-letter at least once:
a message leaves one only when the next has it.

A broker that is killed may forget a quorum queue it has just made, and what it had confirmed of it: it writes the names
of new ones down about a second later (lost at 0.9 s and kept at 1.2 s, with RabbitMQ 3.10), and does not say when. So
an exchange is made only when the queues it stands for are old enough: where a level's exchange is, the level can be
trusted, and all below it; where `<store>.settled` is, which does nothing else, the store's two queues can be.
"""

from __future__ import annotations

import math
from typing import Any

from homing.stores.rabbitmq.connection import Link
from homing.stores.rabbitmq.options import CLASSIC, QUORUM

#: The shortest wait, in seconds; every wait is rounded up to a multiple of it.
UNIT = 0.1
#: RabbitMQ keeps a time to live in 32 bits of milliseconds, which the topmost level just fits.
LEVELS = 26
#: The longest wait in one go, in seconds; who wants longer waits again.
LONGEST = (2**LEVELS - 1) * UNIT
#: Seconds after which a new queue can be trusted.
SETTLED_AFTER = 3.0
_LOOKS = 12

DEAD_SUFFIX = ".dead"
# Our own limit comes long before; this one keeps brokers with a lower default from having their say.
_DELIVERY_LIMIT = 1000


def dead_queue(name: str) -> str:
    """Where the dead of this store go; those of a dead-letter queue stay in it."""
    return name if name.endswith(DEAD_SUFFIX) else f"{name}{DEAD_SUFFIX}"


def settled_name(name: str) -> str:
    """The name of the exchange that is there once the store's queues can be trusted."""
    return f"{name}.settled"


def delay_name(name: str, level: int) -> str:
    """The name of a level's queue, and of the exchange in front of it."""
    return f"{name}.delay.{level}"


def delay_route(name: str, seconds: float) -> tuple[str, str, int]:
    """(exchange, routing key, topmost level) for a message that is to wait so long, at most LONGEST."""
    units = max(1, math.ceil(round(min(seconds, LONGEST) / UNIT, 6)))
    level = units.bit_length() - 1
    return delay_name(name, level), ".".join(f"{units:0{LEVELS}b}"), level


def declare_store(link: Link, name: str, queue_type: str) -> None:
    """Makes the store's two queues; does nothing where they are."""
    declare = link.channel.queue_declare
    dead = dead_queue(name)
    if not all(look(link, "queue_declare", queue=queue) for queue in (dead, name)):
        link.call(link.channel.exchange_delete, exchange=settled_name(name))
    # Should a policy limit a queue, the next message is refused, and none that it has is dropped.
    own = {"x-queue-type": queue_type, "x-overflow": "reject-publish"}
    link.call(declare, queue=dead, durable=True, arguments=own)
    if dead == name:
        return
    # The broker itself dead-letters too, as where a policy limits how long a message may wait.
    arguments: dict[str, Any] = {**own, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    if queue_type != CLASSIC:
        arguments |= {"x-delivery-limit": _DELIVERY_LIMIT, **_AT_LEAST_ONCE}
    link.call(declare, queue=name, durable=True, arguments=arguments)


def settle_store(link: Link, name: str, queue_type: str) -> None:
    """Returns when the store's two queues, which must be there, can be trusted: the first call ever waits."""
    if queue_type == CLASSIC or look(link, "exchange_declare", exchange=settled_name(name)):
        return
    _settle(link, name)
    link.call(link.channel.exchange_declare, exchange=settled_name(name), exchange_type="fanout", durable=True)


def look(link: Link, method: str, **names: str) -> Any:
    """The broker's answer; None if the entity does not exist. Asked on a separate channel, because that closes it."""
    channel, answers, gone = link.new_channel(), list[Any](), list[Any]()
    channel.add_on_close_callback(lambda *_: gone.append(True))
    getattr(channel, method)(**names, passive=True, callback=answers.append)
    link.run(lambda: bool(answers or gone))
    if not answers:
        return None
    channel.close()
    return answers[0]


def make_levels(link: Link, name: str, highest: int) -> None:
    """Makes the levels of waiting up to this one, from the lowest, and returns when all of them can be trusted."""
    for level in range(highest + 1):
        _declare_queue(link, name, level)
    _settle(link, delay_name(name, highest))
    for level in range(highest + 1):
        _declare_exchange(link, name, level)


def _declare_queue(link: Link, name: str, level: int) -> None:
    arguments: dict[str, Any] = {
        "x-queue-type": QUORUM,
        "x-message-ttl": round(UNIT * 1000) * 2**level,
        "x-dead-letter-exchange": _below(name, level),
        **_AT_LEAST_ONCE,
    }
    if not level:
        arguments["x-dead-letter-routing-key"] = name
    link.call(link.channel.queue_declare, queue=delay_name(name, level), durable=True, arguments=arguments)


def _settle(link: Link, queue: str) -> None:
    """Waits until new queues can be trusted: by looks, since a broker that stands still meanwhile writes nothing."""
    for _ in range(_LOOKS):
        link.wait(lambda: False, SETTLED_AFTER / _LOOKS)
        link.call(link.channel.queue_declare, queue=queue, passive=True)


def _declare_exchange(link: Link, name: str, level: int) -> None:
    channel, here = link.channel, delay_name(name, level)
    link.call(channel.exchange_declare, exchange=here, exchange_type="topic", durable=True)
    link.call(channel.queue_bind, queue=here, exchange=here, routing_key=_pattern(level, "1"))
    if level:
        bind = {"destination": _below(name, level), "source": here}
        link.call(channel.exchange_bind, **bind, routing_key=_pattern(level, "0"))
    else:
        link.call(channel.queue_bind, queue=name, exchange=here, routing_key=_pattern(level, "0"))


def _below(name: str, level: int) -> str:
    """The exchange of the next lower level; below the lowest is the broker's own, which knows queues by their names."""
    return delay_name(name, level - 1) if level else ""


_AT_LEAST_ONCE = {"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}


def _pattern(level: int, bit: str) -> str:
    """Matches the routing keys that have this bit at this level."""
    return ".".join(["*"] * (LEVELS - 1 - level) + [bit] + ["#"] * bool(level))
