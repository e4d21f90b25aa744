"""The service itself, through its SDK, which is loaded when it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from homing.stores.servicebus import require_sdk

if TYPE_CHECKING:
    from homing.bus.broker import Broker


def open_service(connection: str) -> Broker:
    """The bus of a connection string, or of a servicebus:// URL; does not connect yet.

    Raises MissingExtraError without the SDK, ConfigurationError for an invalid connection string.
    """
    require_sdk()
    from homing.bus.azure.broker import ServiceBroker
    from homing.stores.servicebus.options import connection_string

    return ServiceBroker(connection_string(connection) if "://" in connection.partition("=")[0] else connection)
