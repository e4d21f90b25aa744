"""Messages in RabbitMQ queues. Needs pika: `pip install homing[rabbitmq]`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from homing.errors import MissingExtraError

if TYPE_CHECKING:
    from homing.stores.rabbitmq.store import RabbitStore


def open_rabbitmq_store(url: str) -> RabbitStore:
    """Opens `amqp://user:password@host:5672/vhost?store=orders`, without connecting yet.

    Raises MissingExtraError without pika, ConfigurationError for a bad option.
    """
    try:
        from homing.stores.rabbitmq.options import parse_url
        from homing.stores.rabbitmq.store import RabbitStore
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "pika":
            raise
        raise MissingExtraError("the RabbitMQ store needs pika: pip install 'homing[rabbitmq]'") from error
    return RabbitStore(*parse_url(url))


__all__ = ["open_rabbitmq_store"]
