"""Messages in RabbitMQ queues. Needs pika: `pip install homing[rabbitmq]`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from homing.extras import needs

if TYPE_CHECKING:
    from homing.stores.rabbitmq.store import RabbitStore


def open_rabbitmq_store(url: str) -> RabbitStore:
    """Opens `amqp://user:password@host:5672/vhost?store=orders`, without connecting yet.

    Raises MissingExtraError without pika, ConfigurationError for a bad option.
    """
    with needs("the RabbitMQ store", "rabbitmq", "pika"):
        from homing.stores.rabbitmq.options import parse_url
        from homing.stores.rabbitmq.store import RabbitStore
    return RabbitStore(*parse_url(url))


__all__ = ["open_rabbitmq_store"]
