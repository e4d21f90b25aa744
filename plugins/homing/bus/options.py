"""How senders and receivers behave."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from homing.constraints import Positive, check_fields
from homing.errors import ConfigurationError
from homing.retry import RetryPolicy


class ReceiveMode(Enum):
    """What receiving does to a message: lock it until it is settled, or remove it at once."""

    PEEK_LOCK = "peeklock"
    RECEIVE_AND_DELETE = "receiveanddelete"


class RetryMode(Enum):
    """How the delays between attempts grow."""

    FIXED = "fixed"
    EXPONENTIAL = "exponential"


@dataclass(frozen=True)
class RetryOptions:
    """How often, and how far apart, an operation is retried while the bus cannot be reached. Seconds.

    `try_timeout` bounds one attempt: at the service the whole of it, in a database each statement with its wait for
    locks.
    """

    max_retries: int = 3
    delay: float = 10.0
    max_delay: float = 60.0
    try_timeout: Positive = 60.0
    mode: RetryMode = RetryMode.FIXED

    def __post_init__(self) -> None:
        if not isinstance(self.mode, RetryMode):
            raise ConfigurationError(f"mode must be RetryMode.FIXED or RetryMode.EXPONENTIAL, got {self.mode!r}")
        check_fields(self)
        self.policy()

    def policy(self) -> RetryPolicy:
        """The same as a RetryPolicy; raises ConfigurationError for an invalid value."""
        growth = 2.0 if self.mode is RetryMode.EXPONENTIAL else 1.0
        return RetryPolicy(self.max_retries, self.delay, multiplier=growth, max_interval=self.max_delay)
