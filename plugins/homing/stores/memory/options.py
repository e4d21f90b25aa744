"""The URL of a memory store, taken apart."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from homing.errors import ConfigurationError
from homing.size_limit import DEFAULT_BYTES

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


@dataclass(frozen=True)
class Options:
    """How a memory store behaves. Durations are in seconds."""

    #: How long a retrieved message is leased the first time; doubled with each delivery.
    ack_wait: float = 30.0
    #: No lease of the store's own lasts longer.
    max_ack_wait: float = 3600.0
    #: Leases after the first are spread by up to this part of them.
    jitter: float = 0.1
    #: How often a lease may run out before the message is kept aside as dead.
    max_deliveries: int = 5
    #: How long a released message waits, doubled with each delivery; 0: not at all.
    backoff: float = 0.0
    #: For how long an id is known after its message was stored; 0: as long as the message is kept.
    duplicate_window: float = 0.0
    #: Acknowledged messages are removed this long after their acknowledgement; 0: only by purge().
    purge_after: float = 600.0
    #: The number of partitions, so that consumers can share the store; 0: none.
    partitions: int = 0
    #: No message of more bytes is taken in: its content and headers as they are written down, and its other texts.
    max_message_bytes: int = DEFAULT_BYTES

    @property
    def kept_for(self) -> float:
        """For how long an acknowledged message is kept at least: as long as its id is to be known."""
        return max(self.purge_after, self.duplicate_window)


def parse_url(url: str) -> tuple[str, Options]:
    """The name and the options; raises ConfigurationError for a bad one."""
    try:
        parts = urlsplit(url)
    except ValueError:
        raise ConfigurationError("this is not a URL such as memory://orders") from None
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    names = {name for name in (parts.netloc + parts.path, options.pop("store", "")) if name}
    name = names.pop() if len(names) == 1 else ""
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            "invalid memory store URL: give one name of letters, digits, _ . and -, such as memory://orders"
        )
    known = {field.name: type(field.default) for field in fields(Options)}
    for key in options:
        if key not in known:
            raise ConfigurationError(f"a memory store has no option {key!r}; it has: {', '.join(known)}")
    return name, Options(**{key: _number(key, text, known[key]) for key, text in options.items()})


def _number(key: str, text: str, kind: type) -> Any:
    may_be_nothing = key not in ("ack_wait", "max_ack_wait", "max_deliveries", "max_message_bytes")
    try:
        value = kind(text)
    except ValueError:
        value = -1
    if not (0 < value < float("inf") or (value == 0 and may_be_nothing)):
        raise ConfigurationError(f"the store option {key} must be > 0, got {text!r}")
    return value
