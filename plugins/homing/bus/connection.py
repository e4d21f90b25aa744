"""Which bus a connection means: a database URL the embedded one, a connection string the service."""

from __future__ import annotations

from homing.bus.broker import Broker
from homing.errors import ConfigurationError
from homing.stores import resolve_url

_DATABASES = ("sqlite", "postgresql", "postgres", "mysql", "mariadb")


def open_broker(connection: str) -> Broker:
    """Opens the bus without connecting yet. `env:NAME` stands for what the environment variable NAME holds.

    Raises ConfigurationError for what is neither a database URL nor a connection string, and never repeats it: it may
    hold a key. Raises MissingExtraError where the service's SDK is needed and not installed.
    """
    connection = resolve_url(connection)
    scheme, separator, _ = connection.partition("://")
    if separator and scheme.partition("+")[0] in _DATABASES:
        from homing.bus.embedded.broker import open_embedded

        return open_embedded(connection)
    if "endpoint=" in connection.lower() or scheme.partition("+")[0] == "servicebus":
        from homing.bus.service import open_service

        return open_service(connection)
    raise ConfigurationError(
        "a bus is a database, such as sqlite:///bus.db, or a connection string of Azure Service Bus, such as "
        "Endpoint=sb://name.servicebus.windows.net/;SharedAccessKeyName=…;SharedAccessKey=…"
    )


def entity_path(queue: str | None, topic: str | None, subscription: str | None = None) -> str:
    """The path of what is named so; raises ConfigurationError unless it is exactly one thing."""
    from homing.bus.entities import Queue, Subscription, Topic

    if (queue is None) == (topic is None):
        raise ConfigurationError("name either a queue or a topic")
    if queue is not None:
        if subscription is not None:
            raise ConfigurationError(f"a subscription belongs to a topic, not to the queue {queue!r}")
        return Queue(name=queue).path
    assert topic is not None
    return Topic(name=topic).path if subscription is None else Subscription(topic=topic, name=subscription).path
