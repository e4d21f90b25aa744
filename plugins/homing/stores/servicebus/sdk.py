"""The SDK, as the store and the bus use it: connecting, and its errors in our words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import Any

from azure.core.exceptions import AzureError
from azure.servicebus import (
    ServiceBusClient,
    ServiceBusReceivedMessage,
    ServiceBusReceiver,
    ServiceBusSender,
    exceptions,
    parse_connection_string,
)

from homing.errors import (
    ConfigurationError,
    HomingError,
    LeaseLostError,
    NoSuchEntityError,
    NoSuchMessageError,
    NotInFlightError,
    SessionHeldError,
    StoreError,
    StoreUnavailableError,
    TooLargeError,
)

_SHORTEST = 0.01  # seconds; the SDK does not take 0 for "do not wait"
_SUBSCRIPTIONS = "/subscriptions/"

# The SDK's errors and ours, the first that fits; what is in none of them is a StoreError.
_ERRORS: tuple[tuple[tuple[type[BaseException], ...], type[HomingError], str], ...] = (
    ((exceptions.MessageLockLostError, exceptions.SessionLockLostError), LeaseLostError,
     "the lock ran out or passed to another receiver"),
    ((exceptions.MessageAlreadySettled,), NotInFlightError, "the message is settled already"),
    ((exceptions.MessageNotFoundError,), NoSuchMessageError, "the message does not exist"),
    ((exceptions.MessagingEntityNotFoundError,), NoSuchEntityError, "the queue, topic or subscription does not exist"),
    ((exceptions.SessionCannotBeLockedError,), SessionHeldError, "the session is held by another receiver"),
    ((exceptions.MessageSizeExceededError,), TooLargeError, "the message is larger than the service accepts"),
    ((exceptions.ServiceBusAuthenticationError, exceptions.ServiceBusAuthorizationError), ConfigurationError,
     "the service refuses the key of this connection string"),
    ((exceptions.ServiceBusQuotaExceededError,), StoreUnavailableError, "a quota of the service is used up"),
    ((exceptions.MessagingEntityDisabledError,), StoreUnavailableError, "the queue, topic or subscription is disabled"),
    ((exceptions.ServiceBusServerBusyError,), StoreUnavailableError, "the service is too busy"),
    ((exceptions.ServiceBusConnectionError, exceptions.ServiceBusCommunicationError, exceptions.OperationTimeoutError,
      OSError), StoreUnavailableError, "the service cannot be reached"),
)  # fmt: skip


@contextmanager
def translated(doing: str) -> Iterator[None]:
    """The SDK's errors, in our words: "cannot <doing>: why"."""
    try:
        yield
    except HomingError:
        raise
    except (AzureError, OSError, ValueError, TypeError) as error:
        for kinds, ours, why in _ERRORS:
            if isinstance(error, kinds):
                raise ours(f"cannot {doing}: {why} ({_text(error)})") from error
        raise StoreError(f"cannot {doing}: {_text(error)}") from error


def connect(connection_string: str, **options: Any) -> ServiceBusClient:
    """A client, which connects when it is used; raises ConfigurationError for an invalid connection string."""
    try:
        return ServiceBusClient.from_connection_string(connection_string, **options)
    except (ValueError, AttributeError, KeyError):
        # The SDK's own text may repeat the key: it is not told as the cause either.
        raise ConfigurationError(
            "this is not a connection string of Azure Service Bus, such as "
            "Endpoint=sb://name.servicebus.windows.net/;SharedAccessKeyName=…;SharedAccessKey=…"
        ) from None


def refuse_other_entity(connection_string: str, path: str) -> None:
    """Raises ConfigurationError where the connection string is that of one entity, and this is another."""
    entity = parse_connection_string(connection_string).entity_path
    wanted = path.partition(_SUBSCRIPTIONS)[0]
    if entity and entity != wanted:
        raise ConfigurationError(
            f"this connection string is limited to {entity!r} by its EntityPath, and cannot be used for {wanted!r}"
        )


def sender_for(client: ServiceBusClient, path: str) -> ServiceBusSender:
    """A topic is sent to as a queue is: the name alone decides."""
    return client.get_queue_sender(path)


def receiver_for(client: ServiceBusClient, path: str, **options: Any) -> ServiceBusReceiver:
    topic, separator, subscription = path.partition(_SUBSCRIPTIONS)
    if separator:
        return client.get_subscription_receiver(topic, subscription, **options)
    return client.get_queue_receiver(path, **options)


def seconds_until(end: datetime | None) -> float:
    """In how many seconds a lock ends; 0 where there is none."""
    return 0.0 if end is None else max((end - datetime.now(timezone.utc)).total_seconds(), 0.0)


class Receiving:
    """Receives by a receiver of the SDK, and opens it anew where its connection broke.

    The SDK takes the time of a receive for connecting too, and a short one never gets that far. Looking into the queue
    connects in its own time.
    """

    def __init__(self, receiver: ServiceBusReceiver) -> None:
        self._receiver = receiver
        self._broken = False

    def receive(self, limit: int, wait: float) -> list[ServiceBusReceivedMessage]:
        if self._broken:
            self._receiver.peek_messages(1)
        self._broken = True
        received = self._receiver.receive_messages(limit, max_wait_time=max(wait, _SHORTEST))
        self._broken = False
        return received


def _text(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
