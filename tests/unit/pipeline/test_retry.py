"""The retry policy."""

from __future__ import annotations

from typing import Any

import pytest

from homing.errors import ConfigurationError
from homing.retry import RetryDecision, RetryPolicy


def test_policy_allows_max_retries_after_the_first_attempt() -> None:
    policy = RetryPolicy(max_retries=2, interval=5)
    decisions = [policy.decide(OSError(), attempt) for attempt in (1, 2, 3)]
    assert decisions == [RetryDecision(True, 5.0), RetryDecision(True, 5.0), RetryDecision(False, 0.0)]


def test_no_retries_is_a_valid_policy() -> None:
    assert not RetryPolicy(max_retries=0).decide(OSError(), 1).retry


@pytest.mark.parametrize("max_retries", [-1, 1.5, "2", None, True])
def test_max_retries_must_be_a_whole_number_from_zero_up(max_retries: Any) -> None:
    with pytest.raises(ConfigurationError, match="max_retries"):
        RetryPolicy(max_retries=max_retries)


@pytest.mark.parametrize("interval", [0, -1, 0.0, float("nan"), float("inf"), "1", None, True])
def test_interval_must_be_positive_even_without_retries(interval: Any) -> None:
    with pytest.raises(ConfigurationError, match="interval"):
        RetryPolicy(max_retries=0, interval=interval)


def test_policy_is_a_value() -> None:
    assert RetryPolicy(2, 1) == RetryPolicy(2, 1)
    with pytest.raises(AttributeError):
        RetryPolicy(2, 1).max_retries = 3  # type: ignore[misc]
