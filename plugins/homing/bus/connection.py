"""Opens the bus of a connection: a database URL means the embedded bus, a connection string the service."""

from __future__ import annotations

from homing.bus.broker import Broker
from homing.errors import ConfigurationError
from homing.store_ref import CONNECTION, StoreRef

_DATABASES = ("sqlite", "postgresql", "postgres", "mysql", "mariadb")


def open_broker(connection: str) -> Broker:
    """Opens the bus without connecting yet. `env:NAME` stands for the value of the environment variable NAME.

    Raises ConfigurationError for anything but a database URL or a connection string, without repeating it: it may
     contain a key. Raises MissingExtraError if the service's SDK is needed and not installed.
    """
    if (named := StoreRef(connection)).kind != CONNECTION:
        connection = named.resolve()
    scheme, separator, _ = connection.partition("://")
    if separator and scheme.partition("+")[0] in _DATABASES:
        from homing.bus.embedded.broker import open_embedded

        return open_embedded(connection)
    if "endpoint=" in connection.lower() or scheme.partition("+")[0] == "servicebus":
        from homing.bus.azure import open_service

        return open_service(connection)
    raise ConfigurationError(
        "invalid bus connection: give a database URL such as sqlite:///bus.db, or a connection string of Azure Service "
        "Bus such as Endpoint=sb://name.servicebus.windows.net/;SharedAccessKeyName=…;SharedAccessKey=…"
    )


def entity_path(queue: str | None, topic: str | None, subscription: str | None = None) -> str:
    """The path of the entity named by these; raises ConfigurationError unless they name exactly one."""
    from homing.bus.entities import Queue, Subscription, Topic

    if (queue is None) == (topic is None):
        raise ConfigurationError("give either a queue or a topic, not both or none")
    if queue is not None:
        if subscription is not None:
            raise ConfigurationError(f"subscription given with queue {queue!r}: a subscription belongs to a topic")
        return Queue(name=queue).path
    assert topic is not None
    return Topic(name=topic).path if subscription is None else Subscription(topic=topic, name=subscription).path
