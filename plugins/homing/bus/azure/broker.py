"""ServiceBroker: links and administration over the SDK."""

from __future__ import annotations

from functools import partial
from typing import Any

from azure.servicebus import ServiceBusClient

from homing.bus.azure.administration import ServiceAdministration
from homing.bus.azure.receiver import ServiceReceiveLink
from homing.bus.azure.sender import ServiceSendLink
from homing.bus.broker import Administration, Broker, ReceiveLink, ReceiveOptions, SendLink
from homing.bus.options import RetryMode, RetryOptions
from homing.stores.servicebus import sdk


class ServiceBroker(Broker):
    def __init__(self, connection_string: str) -> None:
        self._connection_string = connection_string
        sdk.connect(connection_string).close()  # refuses an invalid connection string; does not connect

    def open_sender(self, path: str, retry: RetryOptions) -> SendLink:
        return ServiceSendLink(partial(self._connect, path, retry), path)

    def open_receiver(self, path: str, options: ReceiveOptions, *, dead_lettered: bool = False) -> ReceiveLink:
        connect = partial(self._connect, path, options.retry)
        return ServiceReceiveLink(connect, path, options, dead_lettered=dead_lettered)

    def _connect(self, path: str, retry: RetryOptions) -> ServiceBusClient:
        sdk.refuse_other_entity(self._connection_string, path)
        return sdk.connect(self._connection_string, **_retrying(retry))

    def administration(self) -> Administration:
        return ServiceAdministration(self._connection_string)

    def close(self) -> None:
        """Every link has closed its own client."""


def _retrying(retry: RetryOptions) -> dict[str, Any]:
    # The SDK already doubles the delay before the first pause.
    first = retry.delay / 2 if retry.mode is RetryMode.EXPONENTIAL else retry.delay
    return {
        "retry_total": retry.max_retries,
        "retry_backoff_factor": first,
        "retry_backoff_max": retry.max_delay,
        "retry_mode": retry.mode.value,
        "try_timeout": retry.try_timeout,
    }
