"""Messages in queues of Azure Service Bus. Needs azure-servicebus: `pip install homing[azure]`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from homing.extras import needs

if TYPE_CHECKING:
    from homing.stores.servicebus.store import ServiceBusStore


def open_servicebus_store(url: str) -> ServiceBusStore:
    """Opens `servicebus://key-name:key@namespace.servicebus.windows.net/?store=orders`, without connecting yet.

    Raises MissingExtraError without the SDK, ConfigurationError for a bad option.
    """
    from homing.stores.servicebus.options import parse_url

    require_sdk()
    from homing.stores.servicebus.store import ServiceBusStore

    return ServiceBusStore(*parse_url(url))


def require_sdk() -> None:
    """Raises MissingExtraError, which names the extra, when the SDK is not installed."""
    with needs("Azure Service Bus", "azure", "azure"):
        import azure.servicebus  # noqa: F401


__all__ = ["open_servicebus_store", "require_sdk"]
