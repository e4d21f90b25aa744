"""The listener's configuration."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from homing import ListenerConfig, RetryPolicy, StoreListener, open_store
from homing.errors import ConfigurationError, UnsupportedError
from tests.unit.listener.conftest import PlainStore


def test_defaults_are_those_of_the_specification() -> None:
    config = ListenerConfig()
    assert (config.polling_interval, config.max_retries, config.retry_interval) == (1, 3, 1)
    assert (config.ack_with_failure_after_max_retries, config.dead_letter_store) == (True, None)


@pytest.mark.parametrize("name", ["polling_interval", "retry_interval", "lease", "max_handling_time"])
@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), "1", None, True, timedelta(0)])
def test_intervals_must_be_positive_whatever_else_is_set(name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=name):
        ListenerConfig(**{"max_retries": 0, name: value})


def test_interval_may_be_a_timedelta() -> None:
    assert ListenerConfig(polling_interval=timedelta(minutes=1)).polling_interval == 60.0


@pytest.mark.parametrize("value", [-1, 1.5, "3", None, True])
def test_max_retries_must_be_a_whole_number_from_zero_up(value: Any) -> None:
    with pytest.raises(ConfigurationError, match="max_retries"):
        ListenerConfig(max_retries=value)


def test_no_retries_is_valid() -> None:
    assert not ListenerConfig(max_retries=0).policy.decide(OSError(), 1).retry


@pytest.mark.parametrize("name", ["concurrency", "batch_size"])
@pytest.mark.parametrize("value", [0, -1, 1.5, None, True])
def test_numbers_of_things_must_be_whole_and_positive(name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=name):
        ListenerConfig(**{name: value})


@pytest.mark.parametrize(
    ("given", "releases"),
    [
        ({}, True),
        ({"ack_with_failure_after_max_retries": True}, True),
        ({"ack_with_failure_after_max_retries": False}, False),
        ({"drop_message_after_max_retries": False}, True),
        ({"drop_message_after_max_retries": True}, False),
        ({"ack_with_failure_after_max_retries": True, "drop_message_after_max_retries": False}, True),
        ({"ack_with_failure_after_max_retries": False, "drop_message_after_max_retries": True}, False),
    ],
)
def test_both_spellings_set_the_one_switch(given: Any, releases: bool) -> None:
    config = ListenerConfig(**given)
    assert config.ack_with_failure_after_max_retries is releases
    assert config.drop_message_after_max_retries is not releases
    assert replace(config, concurrency=2).ack_with_failure_after_max_retries is releases


@pytest.mark.parametrize("both", [True, False])
def test_spellings_that_contradict_each_other_are_an_error(both: bool) -> None:
    with pytest.raises(ConfigurationError, match="contradict"):
        ListenerConfig(ack_with_failure_after_max_retries=both, drop_message_after_max_retries=both)


@pytest.mark.parametrize("name", ["ack_with_failure_after_max_retries", "drop_message_after_max_retries"])
def test_switch_is_a_bool(name: str) -> None:
    with pytest.raises(ConfigurationError, match=name):
        ListenerConfig(**{name: "yes"})


def test_whole_policy_takes_the_place_of_its_short_form() -> None:
    policy = RetryPolicy.exponential(7, 2)
    assert ListenerConfig(retry=policy).policy == policy
    with pytest.raises(ConfigurationError, match="retry="):
        ListenerConfig(retry=policy, max_retries=2)
    with pytest.raises(ConfigurationError, match="RetryPolicy"):
        ListenerConfig(retry=3)  # type: ignore[arg-type]


def test_what_is_no_store_is_refused(plain: Any) -> None:
    with pytest.raises(ConfigurationError, match="dead_letter_store"):
        ListenerConfig(dead_letter_store="dead")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="listens to must be a store"):
        StoreListener("orders")  # type: ignore[arg-type]


def test_store_cannot_be_its_own_dead_letter_store(plain: Any) -> None:
    with pytest.raises(ConfigurationError, match="own dead-letter store"):
        StoreListener(plain, ListenerConfig(dead_letter_store=plain))


@pytest.mark.parametrize("partitions", [[], [-1], [True], "01", 3, [0.5]])
def test_partitions_that_cannot_be_are_refused(partitions: Any) -> None:
    with pytest.raises(ConfigurationError, match="partitions must be at least one integer >= 0"):
        ListenerConfig(partitions=partitions)


def test_partitions_are_refused_where_the_store_has_none() -> None:
    with pytest.raises(UnsupportedError, match=r"'partitions'.*memory, sql"):
        StoreListener(PlainStore(), ListenerConfig(partitions={0}))
    with pytest.raises(ConfigurationError, match="has no partitions"):
        StoreListener(open_store("memory://cut?partitions=2"), ListenerConfig(partitions={2}))


@pytest.mark.parametrize("url", ["memory://shared_out?partitions=4", "sqlite:///{}/x.db?store=shared_out&partitions=4"])
def test_two_listeners_share_a_store_out_by_partition(tmp_path: Path, url: str, until: Callable[..., None]) -> None:
    seen: dict[str, list[int]] = {"even": [], "odd": []}
    with open_store(url.format(tmp_path)) as store, ExitStack() as running:

        def start(name: str, partitions: set[int]) -> None:
            config = ListenerConfig(partitions=partitions, polling_interval=0.02)
            listener = running.enter_context(StoreListener(store, config))
            listener.attach(seen[name].append)
            listener.start()

        store.store_many(range(40))
        start("even", {0, 2})
        until(lambda: not store.has_due(partitions=[0, 2]))
        assert store.has_due(partitions=[1, 3])
        start("odd", {1, 3})
        store.store_many(range(40, 80))
        until(lambda: store.count()["acknowledged"] == 80)

    assert sorted(seen["even"] + seen["odd"]) == list(range(80))
    assert all(seen.values())
