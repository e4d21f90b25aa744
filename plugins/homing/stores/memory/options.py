"""The URL of a memory store, and its options."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from homing.arguments import refuse_unknown
from homing.constraints import AtLeastOne, Count, NotNegative, Positive, check_fields
from homing.errors import ConfigurationError
from homing.size_limit import DEFAULT_BYTES
from homing.stores.options import option_names, read_options, split_query

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


@dataclass(frozen=True)
class MemoryOptions:
    """How a memory store behaves. Durations are in seconds."""

    #: How long a retrieved message is leased the first time; doubled with each delivery.
    ack_wait: Positive = 30.0
    #: No lease of the store's own lasts longer.
    max_ack_wait: Positive = 3600.0
    #: Leases after the first are spread by up to this part of them.
    jitter: NotNegative = 0.1
    #: How often a lease may run out before the message is kept aside as dead.
    max_deliveries: AtLeastOne = 5
    #: How long a released message waits, doubled with each delivery; 0: not at all.
    backoff: NotNegative = 0.0
    #: For how long an id is known after its message was stored; 0: as long as the message is kept.
    duplicate_window: NotNegative = 0.0
    #: Acknowledged messages are removed this long after their acknowledgement; 0: only by purge().
    purge_after: NotNegative = 600.0
    #: The number of partitions, so that consumers can share the store; 0: none.
    partitions: Count = 0
    #: No message of more bytes is taken in: its content and headers as they are written down, and its other texts.
    max_message_bytes: AtLeastOne = DEFAULT_BYTES

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def kept_for(self) -> float:
        """For how long an acknowledged message is kept at least: as long as its id is to be known."""
        return max(self.purge_after, self.duplicate_window)


def parse_url(url: str) -> tuple[str, MemoryOptions]:
    """The name and the options; raises ConfigurationError for a bad one."""
    try:
        parts = urlsplit(url)
    except ValueError:
        raise ConfigurationError("this is not a URL such as memory://orders") from None
    query = split_query(parts.query)
    names = {name for name in (parts.netloc + parts.path, query.pop("store", "")) if name}
    name = names.pop() if len(names) == 1 else ""
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            "invalid memory store URL: give one name of letters, digits, _ . and -, such as memory://orders"
        )
    refuse_unknown(query, option_names(MemoryOptions), of="a memory store")
    return name, read_options(MemoryOptions, query)
