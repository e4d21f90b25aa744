"""The URL of a RabbitMQ store, and its options."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlencode, urlsplit, urlunsplit

import pika
from msgspec import Meta

from homing.arguments import refuse_unknown
from homing.constraints import NotNegative, Positive, check_fields
from homing.errors import ConfigurationError
from homing.size_limit import HIGHEST_BYTES
from homing.stores.options import option_names, read_options, split_query
from homing.stores.tls import client_context

QUORUM: Final = "quorum"
CLASSIC: Final = "classic"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_MAX_PREFETCH = 65_535


@dataclass(frozen=True)
class RabbitOptions:
    """How a RabbitMQ store behaves; see RabbitStore. Durations are in seconds."""

    name: str = "messages"
    queue_type: Literal["quorum", "classic"] = QUORUM
    prefetch: Annotated[int, Meta(ge=1, le=_MAX_PREFETCH)] = 1
    ack_wait: Positive = 30.0
    max_ack_wait: Positive = 3600.0
    max_deliveries: Annotated[int, Meta(ge=1, le=_MAX_PREFETCH)] = 5
    backoff: NotNegative = 0.0
    timeout: Positive = 30.0
    max_message_bytes: Annotated[int, Meta(ge=1, le=HIGHEST_BYTES)] = 4 * 2**20

    def __post_init__(self) -> None:
        check_fields(self)
        if not _NAME.fullmatch(self.name):
            raise ConfigurationError(
                f"a store name must be letters, digits, _ . and -, at most 100, got {self.name!r:.120}"
            )


@dataclass(frozen=True)
class AmqpTls:
    """How a RabbitMQ store speaks TLS. All but `require_tls` are for amqps://."""

    require_tls: bool = False
    cafile: str | None = None
    certfile: str | None = None
    keyfile: str | None = None
    server_hostname: str | None = None
    verify: bool = True


@dataclass(frozen=True)
class PikaSettings:
    """What pika itself reads from a URL; None: pika's own default."""

    heartbeat: str | None = "60"
    blocked_connection_timeout: str | None = "60"
    socket_timeout: str | None = "10"
    stack_timeout: str | None = "15"
    connection_attempts: str | None = None
    retry_delay: str | None = None
    frame_max: str | None = None


def parse_url(url: str) -> tuple[Any, RabbitOptions]:
    """Connection parameters and options; raises ConfigurationError, which never repeats the URL."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        # Without the cause, whose text repeats the part of the URL that holds the password.
        raise ConfigurationError("this is not an AMQP URL such as amqp://host/?store=orders") from None
    query = split_query(parts.query)
    refuse_unknown(query, option_names(RabbitOptions, AmqpTls, PikaSettings), of="a RabbitMQ store")
    tls = read_options(AmqpTls, query)
    _refuse_plain_text(parts.scheme, query, required=tls.require_tls)
    options = read_options(RabbitOptions, query)
    settings = {name: value for name, value in asdict(read_options(PikaSettings, query)).items() if value is not None}
    try:
        parameters = pika.URLParameters(urlunsplit(parts._replace(query=urlencode(settings))))
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"this is not an AMQP URL such as amqp://host/?store=orders: {error}") from error
    if parts.scheme == "amqps":
        parameters.ssl_options = _tls_options(tls, parameters.host)
    parameters.client_properties = {"connection_name": f"homing {options.name}"}
    return parameters, options


def _refuse_plain_text(scheme: str, given: Mapping[str, str], *, required: bool) -> None:
    if scheme == "amqps":
        return
    if required:
        raise ConfigurationError("require_tls needs an amqps:// URL: amqp:// sends the password in plain text")
    for name in option_names(AmqpTls):
        if name in given and name != "require_tls":
            raise ConfigurationError(f"the store option {name} is for amqps:// URLs")


def _tls_options(tls: AmqpTls, host: str) -> pika.SSLOptions:
    context = client_context(ca_file=tls.cafile, cert_file=tls.certfile, key_file=tls.keyfile, verify=tls.verify)
    return pika.SSLOptions(context, tls.server_hostname or host)
