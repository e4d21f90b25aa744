"""The URL of a Service Bus store, and its options."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote, unquote, urlencode, urlsplit

from homing.arguments import refuse_unknown
from homing.constraints import Count, NotNegative, Positive, check_fields
from homing.errors import ConfigurationError
from homing.stores.options import option_names, read_options, split_query

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,258}[A-Za-z0-9_])?")
_FORM = "servicebus://key-name:key@namespace.servicebus.windows.net/?store=queue"


@dataclass(frozen=True)
class ServiceBusOptions:
    """How a Service Bus store behaves; see ServiceBusStore. Durations are seconds."""

    #: The queue, or the topic where a subscription is named.
    name: str = "messages"
    subscription: str | None = None
    #: How long a retrieved message is leased; its lock at the service is renewed for so long.
    ack_wait: Positive = 30.0
    #: After so many deliveries the store dead-letters a message; 0: the queue's own max delivery count decides.
    max_deliveries: Count = 0
    #: How long `retrieve` lets the service look for a message.
    patience: Positive = 0.2
    #: How often an operation is tried again, and how far apart, while the service is away.
    retries: Count = 3
    retry_delay: NotNegative = 0.8
    #: Whether an emulator, which speaks without TLS, is refused.
    require_tls: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        for text in (self.name, self.subscription):
            if text is not None and not _NAME.fullmatch(text):
                raise ConfigurationError(f"invalid queue name {text!r:.80}: use letters, digits, . - _ and /")


def parse_url(url: str) -> tuple[str, ServiceBusOptions]:
    """The connection string and the options; raises ConfigurationError, which never repeats the URL.

    `servicebus+emulator://` means an emulator, which speaks without TLS on the port that is given.
    """
    parts = urlsplit(url)
    query = split_query(parts.query)
    refuse_unknown(query, option_names(ServiceBusOptions), of="a Service Bus store")
    options = read_options(ServiceBusOptions, query)
    if options.require_tls and parts.scheme == "servicebus+emulator":
        raise ConfigurationError(
            "require_tls needs a servicebus:// URL: the connection to an emulator is in plain text"
        )
    return connection_string(url), options


def connection_string(url: str) -> str:
    """What the SDK connects by."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:  # which quotes the URL
        raise ConfigurationError(f"this is not a Service Bus URL such as {_FORM}") from None
    if not host or not parts.username or not parts.password:
        raise ConfigurationError(f"the Service Bus URL lacks a key or a namespace: write {_FORM}")
    emulator = parts.scheme == "servicebus+emulator"
    if port is not None and not emulator:
        raise ConfigurationError("a servicebus:// URL takes no port; use servicebus+emulator:// for an emulator's port")
    place = f"{host}:{port}" if port is not None else host
    key = f"SharedAccessKeyName={unquote(parts.username)};SharedAccessKey={unquote(parts.password)};"
    return f"Endpoint=sb://{place};{key}" + ("UseDevelopmentEmulator=true;" if emulator else "")


def servicebus_url(connection_string: str, queue: str, subscription: str | None = None) -> str:
    """The URL of the store on a queue, or on a topic's subscription, of this connection string."""
    parts = dict(part.partition("=")[::2] for part in connection_string.strip().strip(";").split(";"))
    known = {name.strip().lower(): value.strip() for name, value in parts.items()}
    place = known.get("endpoint", "").partition("://")[2].partition("/")[0]
    name, key = known.get("sharedaccesskeyname"), known.get("sharedaccesskey")
    if not (place and name and key):
        raise ConfigurationError("this is not a connection string of Azure Service Bus with a shared access key")
    scheme = "servicebus+emulator" if known.get("usedevelopmentemulator") == "true" else "servicebus"
    query = {"store": queue} if subscription is None else {"store": queue, "subscription": subscription}
    return f"{scheme}://{quote(name, safe='')}:{quote(key, safe='')}@{place}/?{urlencode(query)}"
