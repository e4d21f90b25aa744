"""ListenerConfig: how a listener polls, retries and gives up."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from homing.arguments import refuses_unknown
from homing.constraints import AtLeastOne, Count, Duration, check_fields, partition_numbers
from homing.custom_store import as_store
from homing.errors import ConfigurationError
from homing.retry import RetryPolicy, one_policy
from homing.store import Store

_USUAL = RetryPolicy(max_retries=3, interval=1.0)


@refuses_unknown
@dataclass(frozen=True)
class ListenerConfig:
    """How a StoreListener works. Raises ConfigurationError for a value that cannot be.

    polling_interval    seconds to wait when the store has nothing due
    max_retries         attempts after the first one; 0 is valid
    retry_interval      seconds between attempts
    dead_letter_store   where a message goes that failed for good; while that store is down, the message is released
    ack_with_failure_after_max_retries
                        without a dead-letter store: True releases such a message, False drops it
    drop_message_after_max_retries
                        the older spelling of the same switch, the other way round
    retry               a whole policy in place of max_retries and retry_interval
    concurrency         how many handlers run at the same time
    batch_size          how many messages an `on_messages` service gets at once, at most
    lease               seconds a message is held without a sign of life; renewed while its handler runs
    max_handling_time   seconds after which a handler counts as hung: its lease is not renewed any more
    partitions          which partitions of the store are listened to; None for all
    """

    polling_interval: Duration = 1.0
    max_retries: Count = 3
    retry_interval: Duration = 1.0
    dead_letter_store: Store | None = None
    ack_with_failure_after_max_retries: bool | None = None
    drop_message_after_max_retries: bool | None = None
    retry: RetryPolicy | None = None
    concurrency: AtLeastOne = 1
    batch_size: AtLeastOne = 100
    lease: Duration = 30.0
    max_handling_time: Duration = 900.0
    partitions: Collection[int] | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.dead_letter_store is not None:
            object.__setattr__(self, "dead_letter_store", as_store(self.dead_letter_store, "dead_letter_store"))
        self.policy  # noqa: B018 - raises for one that cannot be
        object.__setattr__(self, "partitions", partition_numbers(self.partitions))
        self._settle_switch()

    @property
    def policy(self) -> RetryPolicy:
        return one_policy(self.retry, self.max_retries, self.retry_seconds, usual=_USUAL, of="a listener")

    @property
    def share(self) -> dict[str, Any]:
        """What says to a store that only its `partitions` are meant."""
        return {} if self.partitions is None else {"partitions": self.partitions}

    @property
    def polling_seconds(self) -> float:
        return _seconds(self.polling_interval)

    @property
    def retry_seconds(self) -> float:
        return _seconds(self.retry_interval)

    @property
    def lease_seconds(self) -> float:
        return _seconds(self.lease)

    @property
    def handling_seconds(self) -> float:
        return _seconds(self.max_handling_time)

    def _settle_switch(self) -> None:
        release, drop = self.ack_with_failure_after_max_retries, self.drop_message_after_max_retries
        if release is not None and release == drop:
            raise ConfigurationError(
                f"ack_with_failure_after_max_retries={release} and drop_message_after_max_retries={drop} contradict "
                "each other: they are two spellings of one switch, give one of them"
            )
        if release is None:
            release = not drop
        object.__setattr__(self, "ack_with_failure_after_max_retries", release)
        object.__setattr__(self, "drop_message_after_max_retries", not release)


def _seconds(value: float | timedelta) -> float:
    return value.total_seconds() if isinstance(value, timedelta) else float(value)


def name_of(store: Store) -> str:
    """What people call a store; of one whose author gave it no name, its type."""
    return str(getattr(store, "name", "") or type(store).__qualname__)
