"""The retry policy."""

from __future__ import annotations

import pickle
from datetime import timedelta
from typing import Any

import pytest

from homing.errors import BindingError, ConfigurationError, ContentError, HandlerError, HandlersFailedError
from homing.retry import Retry, RetryDecision, RetryPolicy


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


def test_fixed_delays_are_all_the_same() -> None:
    policy = RetryPolicy(3, 4)
    assert [policy.delay(attempt) for attempt in (1, 2, 3)] == [4.0, 4.0, 4.0]


def test_exponential_delays_double_up_to_the_cap() -> None:
    policy = RetryPolicy.exponential(9, 1, max_interval=6, jitter=0)
    assert [policy.delay(attempt) for attempt in (1, 2, 3, 4, 5)] == [1.0, 2.0, 4.0, 6.0, 6.0]


def test_exponential_delay_without_a_cap_never_overflows() -> None:
    delay = RetryPolicy.exponential(9, 1, max_interval=None, jitter=0).delay(100_000)
    assert 0 < delay < float("inf")


def test_delay_that_no_clock_can_count_is_cut_off() -> None:
    assert Retry(after=1e300).after == 1e9
    assert RetryPolicy(1, 1e300, max_interval=1e300).decide(OSError(), 1) == RetryDecision(True, 1e9)


def test_jitter_takes_off_at_most_its_share_and_spreads_messages() -> None:
    policy = RetryPolicy(1, 10, jitter=0.5)
    delays = [policy.delay(1, key=f"m{number}") for number in range(200)]
    assert 5.0 <= min(delays) < 6.0
    assert 9.0 < max(delays) <= 10.0


def test_decision_is_pure() -> None:
    policy = RetryPolicy.exponential(5, 1)
    assert policy.decide(OSError(), 3, key="m1") == policy.decide(OSError(), 3, key="m1")


def test_error_of_a_type_named_in_never_is_not_tried_again() -> None:
    policy = RetryPolicy(3, never=(PermissionError,))
    assert not policy.decide(PermissionError(), 1).retry
    assert policy.decide(OSError(), 1).retry


def test_content_that_does_not_fit_is_tried_again_like_any_failure_unless_the_policy_says_otherwise() -> None:
    assert RetryPolicy(3).decide(BindingError(), 1).retry
    assert not RetryPolicy(3, never=(ContentError,)).decide(BindingError(), 1).retry


def failed_with(*causes: BaseException) -> HandlersFailedError:
    errors = []
    for cause in causes:
        errors.append(HandlerError("failed", "crm"))
        errors[-1].__cause__ = cause
    return HandlersFailedError("failed", errors)


def test_policy_looks_at_what_the_handlers_of_a_chain_raised() -> None:
    policy = RetryPolicy(3, 5, never=(PermissionError,))
    assert policy.decide(failed_with(Retry(after=30)), 1) == RetryDecision(True, 30.0)
    assert not policy.decide(failed_with(PermissionError()), 1).retry
    assert policy.decide(failed_with(), 1) == RetryDecision(True, 5.0)


def test_one_handler_that_may_be_tried_again_is_enough_and_the_longest_delay_counts() -> None:
    policy = RetryPolicy(3, 5, never=(PermissionError,))
    assert policy.decide(failed_with(PermissionError(), OSError()), 1) == RetryDecision(True, 5.0)
    assert policy.decide(failed_with(OSError(), Retry(after=30)), 1) == RetryDecision(True, 30.0)
    assert not policy.decide(failed_with(PermissionError(), PermissionError()), 1).retry


def test_retry_raised_by_a_handler_sets_the_delay_and_uses_up_an_attempt() -> None:
    policy = RetryPolicy(1, 5)
    assert policy.decide(Retry(after=30), 1) == RetryDecision(True, 30.0)
    assert policy.decide(Retry(after=timedelta(minutes=2)), 1) == RetryDecision(True, 120.0)
    assert policy.decide(Retry(), 1) == RetryDecision(True, 5.0)
    assert not policy.decide(Retry(after=30), 2).retry


@pytest.mark.parametrize("after", [-1, float("nan"), "soon", True])
def test_retry_after_an_impossible_time_is_refused(after: Any) -> None:
    with pytest.raises(ConfigurationError, match="after"):
        Retry(after=after)


def test_retry_survives_pickling() -> None:
    twin = pickle.loads(pickle.dumps(Retry("busy", after=3)))  # noqa: S301
    assert (str(twin), twin.after) == ("busy", 3.0)


@pytest.mark.parametrize(
    "options",
    [
        {"multiplier": 0.5},
        {"max_interval": 0},
        {"jitter": 1.1},
        {"jitter": -0.1},
        {"never": (3,)},
        {"never": [OSError]},
    ],
)
def test_impossible_option_is_refused_by_name(options: Any) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        RetryPolicy(1, **options)


def test_policy_speaks_the_words_of_an_airflow_task() -> None:
    assert RetryPolicy(2, 5).task_arguments() == {"retries": 2, "retry_delay": timedelta(seconds=5)}
    assert RetryPolicy.exponential(2, 5, max_interval=60).task_arguments() == {
        "retries": 2,
        "retry_delay": timedelta(seconds=5),
        "retry_exponential_backoff": 2.0,
        "max_retry_delay": timedelta(seconds=60),
    }


@pytest.mark.parametrize(
    "policy", [RetryPolicy(2, never=(PermissionError,)), RetryPolicy(2, 5, jitter=0.5)], ids=["never", "jitter"]
)
def test_what_an_airflow_task_cannot_keep_is_refused(policy: RetryPolicy) -> None:
    with pytest.raises(ConfigurationError, match="Airflow"):
        policy.task_arguments()


def test_policy_speaks_the_words_of_a_sql_store() -> None:
    assert RetryPolicy.exponential(2, 5, multiplier=3, max_interval=60).backoff_options() == {
        "backoff": 5.0,
        "backoff_multiplier": 3.0,
        "max_backoff": 60.0,
        "backoff_jitter": 0.2,
    }
