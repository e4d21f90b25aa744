"""The URL of a RabbitMQ store, taken apart."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import pika

from homing.errors import ConfigurationError
from homing.size_limit import HIGHEST_BYTES
from homing.stores.tls import client_context, read_flag

QUORUM = "quorum"
CLASSIC = "classic"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_MAX_PREFETCH = 65_535
# What pika itself reads from a URL, and what it is set to unless the URL says otherwise.
_PIKA = {
    "heartbeat": "60",
    "blocked_connection_timeout": "60",
    "socket_timeout": "10",
    "stack_timeout": "15",
    "connection_attempts": None,
    "retry_delay": None,
    "frame_max": None,
}
# Of TLS, which only amqps:// speaks.
_TLS = ("cafile", "certfile", "keyfile", "server_hostname", "verify")


@dataclass(frozen=True)
class Options:
    """How a RabbitMQ store behaves; see RabbitStore."""

    name: str = "messages"
    queue_type: str = QUORUM
    prefetch: int = 1
    ack_wait: float = 30.0
    max_ack_wait: float = 3600.0
    max_deliveries: int = 5
    backoff: float = 0.0
    timeout: float = 30.0
    max_message_bytes: int = 4 * 2**20


def parse_url(url: str) -> tuple[Any, Options]:
    """Connection parameters and options; raises ConfigurationError, which never repeats the URL."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        # Without the cause, whose text repeats the part of the URL that holds the password.
        raise ConfigurationError("this is not an AMQP URL such as amqp://host/?store=orders") from None
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    tls = {key: query.pop(key) for key in _TLS if key in query}
    _refuse_plain_text(parts.scheme, tls, required=read_flag("require_tls", query.pop("require_tls", "false")))
    ours = {key: query.pop(key) for key in list(query) if key not in _PIKA}
    options = _options(ours)
    settings = {key: query.get(key, default) for key, default in _PIKA.items()}
    settings = {key: value for key, value in settings.items() if value is not None}
    try:
        parameters = pika.URLParameters(urlunsplit(parts._replace(query=urlencode(settings))))
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"this is not an AMQP URL such as amqp://host/?store=orders: {error}") from error
    if parts.scheme == "amqps":
        parameters.ssl_options = _tls_options(tls, parameters.host)
    parameters.client_properties = {"connection_name": f"homing {options.name}"}
    return parameters, options


def _refuse_plain_text(scheme: str, tls: dict[str, str], *, required: bool) -> None:
    if scheme == "amqps":
        return
    if required:
        raise ConfigurationError("require_tls needs an amqps:// URL: amqp:// sends the password in plain text")
    if tls:
        raise ConfigurationError(f"the store option {next(iter(tls))} is for amqps:// URLs")


def _tls_options(tls: dict[str, str], host: str) -> pika.SSLOptions:
    context = client_context(
        ca_file=tls.get("cafile"),
        cert_file=tls.get("certfile"),
        key_file=tls.get("keyfile"),
        verify=read_flag("verify", tls.get("verify", "true")),
    )
    return pika.SSLOptions(context, tls.get("server_hostname", host))


def _options(given: dict[str, str]) -> Options:
    readers: dict[str, Callable[[str, str], Any]] = {
        "queue_type": _queue_type,
        "prefetch": _count,
        "ack_wait": _seconds,
        "max_ack_wait": _seconds,
        "max_deliveries": _count,
        "backoff": _seconds,
        "timeout": _seconds,
        "max_message_bytes": _bytes,
    }
    name = given.pop("store", Options.name)
    if not _NAME.fullmatch(name):
        raise ConfigurationError(f"a store name has letters, digits, _ . and -, at most 100; not {name!r}")
    for key in given:
        if key not in readers:
            known = ", ".join(["store", "require_tls", *readers, *_TLS, *_PIKA])
            raise ConfigurationError(f"a RabbitMQ store has no option {key!r}; it has: {known}")
    return Options(name, **{key: readers[key](key, text) for key, text in given.items()})


def _queue_type(key: str, text: str) -> str:
    if text not in (QUORUM, CLASSIC):
        raise ConfigurationError(f"the store option {key} is {QUORUM} or {CLASSIC}, not {text!r}")
    return text


def _seconds(key: str, text: str) -> float:
    return float(_positive(key, text, float))


def _count(key: str, text: str) -> int:
    value = int(_positive(key, text, int))
    if value > _MAX_PREFETCH:
        raise ConfigurationError(f"the store option {key} is at most {_MAX_PREFETCH}, not {text}")
    return value


def _bytes(key: str, text: str) -> int:
    value = int(_positive(key, text, int))
    if value > HIGHEST_BYTES:
        raise ConfigurationError(f"the store option {key} is at most {HIGHEST_BYTES}, not {text}")
    return value


def _positive(key: str, text: str, kind: Callable[[str], float]) -> float:
    try:
        value = kind(text)
    except ValueError:
        value = 0
    if not 0 < value < float("inf"):
        raise ConfigurationError(f"the store option {key} is a positive number, not {text!r}")
    return value
