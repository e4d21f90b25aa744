"""The URL of a Service Bus store, taken apart."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from homing.errors import ConfigurationError
from homing.stores.tls import read_flag

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,258}[A-Za-z0-9_])?")
_FORM = "servicebus://key-name:key@namespace.servicebus.windows.net/?store=queue"


@dataclass(frozen=True)
class Options:
    """How a Service Bus store behaves; see ServiceBusStore. Durations are seconds."""

    #: The queue, or the topic where a subscription is named.
    name: str = "messages"
    subscription: str | None = None
    #: How long a retrieved message is leased; its lock at the service is renewed for so long.
    ack_wait: float = 30.0
    #: After so many deliveries the store dead-letters a message; 0: the queue's own max delivery count decides.
    max_deliveries: int = 0
    #: How long `retrieve` lets the service look for a message.
    patience: float = 0.2
    #: How often an operation is tried again, and how far apart, while the service is away.
    retries: int = 3
    retry_delay: float = 0.8


def parse_url(url: str) -> tuple[str, Options]:
    """The connection string and the options; raises ConfigurationError, which never repeats the URL.

    `servicebus+emulator://` means an emulator, which speaks without TLS on the port that is given.
    """
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    if read_flag("require_tls", query.pop("require_tls", "false")) and parts.scheme == "servicebus+emulator":
        raise ConfigurationError(
            "require_tls needs a servicebus:// URL: the connection to an emulator is in plain text"
        )
    return connection_string(url), _options(query)


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


def url_of(connection_string: str, queue: str, subscription: str | None = None) -> str:
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


def _options(given: dict[str, str]) -> Options:
    name = given.pop("store", Options.name)
    subscription = given.pop("subscription", None)
    for text in (name, subscription):
        if text is not None and not _NAME.fullmatch(text):
            raise ConfigurationError(f"invalid queue name {text!r:.80}: use letters, digits, . - _ and /")
    known = {field.name: type(field.default) for field in fields(Options) if field.default is not None}
    known.pop("name")
    values = {}
    for key, text in given.items():
        if key not in known:
            names = ", ".join(("store", "subscription", "require_tls", *known))
            raise ConfigurationError(f"a Service Bus store has no option {key!r}; it has: {names}")
        values[key] = _number(key, text, known[key])
    return Options(name, subscription, **values)  # type: ignore[arg-type]


def _number(key: str, text: str, kind: type) -> float:
    try:
        value = kind(text)
    except ValueError:
        value = -1
    if not 0 <= value < float("inf") or (value == 0 and key in ("ack_wait", "patience")):
        raise ConfigurationError(f"the store option {key} is a positive number, not {text!r}")
    return float(value) if kind is float else int(value)
