"""Retries while the database is unavailable."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from homing.bus.options import RetryOptions
from homing.errors import StoreUnavailableError
from homing.stores.database import limited_to

log = logging.getLogger(__name__)

Result = TypeVar("Result")


def call_with_retries(retry: RetryOptions, work: Callable[[], Result]) -> Result:
    """Runs `work`, and again as the options say while the database is unavailable or slow; it must be idempotent."""
    policy, attempt = retry.policy(), 1
    while True:
        try:
            with limited_to(retry.try_timeout):
                return work()
        except StoreUnavailableError as error:
            decision = policy.decide(error, attempt)
            if not decision.retry:
                raise
            log.warning("attempt %d failed, the next in %s s: %s", attempt, decision.delay, error)
            time.sleep(decision.delay)
            attempt += 1
