"""Times and durations as people write them."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from homing.errors import ConfigurationError
from homing.times import parse_duration, parse_past, parse_time

NOW = datetime(2026, 11, 16, 12, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("2026-12-01 02:00 Europe/Berlin", "2026-12-01T01:00:00+00:00"),
        ("2026-07-01 02:00 Europe/Berlin", "2026-07-01T00:00:00+00:00"),
        ("2026-12-01T02:00+05:30", "2026-11-30T20:30:00+00:00"),
        ("2026-12-01 02:00", "2026-12-01T02:00:00+00:00"),
        ("2026-12-01", "2026-12-01T00:00:00+00:00"),
        ("PT5M", "2026-11-16T12:05:00+00:00"),
        ("P1D", "2026-11-17T12:00:00+00:00"),
        ("now", "2026-11-16T12:00:00+00:00"),
    ],
)
def test_a_time_is_in_utc(text: str, time: str) -> None:
    assert parse_time(text, now=NOW).isoformat() == time


def test_a_duration_can_also_mean_the_past() -> None:
    assert parse_past("PT5M", now=NOW) == datetime(2026, 11, 16, 11, 55, tzinfo=timezone.utc)
    assert parse_past("2026-12-01", now=NOW) == datetime(2026, 12, 1, tzinfo=timezone.utc)


@pytest.mark.parametrize("text", ["", "tomorrow", "2026-13-01", "2026-12-01 02:00 Nowhere/Land", "PTX", "12/1/2026"])
def test_what_is_no_time_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ConfigurationError, match="Europe/Berlin"):
        parse_time(text)


def test_durations_are_seconds_or_iso_8601() -> None:
    assert (parse_duration("90"), parse_duration("PT1M30S")) == (90.0, 90.0)


@pytest.mark.parametrize("text", ["-1", "inf", "nan", "soon", ""])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError):
        parse_duration(text)
