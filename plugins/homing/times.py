"""Times and durations as people write them, by pendulum: aware, and in UTC."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone

import pendulum
from pendulum.parsing.exceptions import ParserError

from homing.errors import ConfigurationError

_ZONED = re.compile(r"(?P<time>.*\S)\s+(?P<zone>[A-Za-z]+(?:[/_+-][A-Za-z0-9_+-]+)*)")


def parse_time(text: str, *, now: datetime | None = None) -> datetime:
    """A point in time: `2026-12-01 02:00 Europe/Berlin`, `2026-12-01T02:00+01:00`, `now`, or `PT5M` for in 5 minutes.

    Without a zone it is UTC. Raises ConfigurationError for anything else.
    """
    text, now = text.strip(), now or datetime.now(timezone.utc)
    if text.lower() == "now":
        return now
    duration = _duration(text)
    if duration is not None:
        return _moved(now, duration, text)
    zoned = _ZONED.fullmatch(text)
    time, zone = (zoned["time"], zoned["zone"]) if zoned else (text, "UTC")
    try:
        parsed = pendulum.parse(time, tz=zone)
        if isinstance(parsed, pendulum.DateTime):
            return datetime.fromtimestamp(parsed.timestamp(), timezone.utc)
    except (ParserError, ValueError, LookupError, OverflowError) as error:
        raise ConfigurationError(f"invalid time {text!r}: {_examples()}") from error
    raise ConfigurationError(f"not a point in time: {text!r}: {_examples()}")


def parse_past(text: str, *, now: datetime | None = None) -> datetime:
    """As `parse_time`, but `PT5M` is 5 minutes ago."""
    duration = _duration(text.strip())
    if duration is None:
        return parse_time(text, now=now)
    return _moved(now or datetime.now(timezone.utc), -duration, text)


def parse_duration(text: str) -> float:
    """Seconds: a number, or an ISO 8601 duration such as PT5M or P1D. Raises ConfigurationError for anything else."""
    try:
        seconds = float(text)
    except ValueError:
        duration = _duration(text.strip())
        if duration is None:
            raise ConfigurationError(f"invalid duration {text!r}: write seconds, or PT5M for 5 minutes") from None
        seconds = duration.total_seconds()
    if not 0 <= seconds < float("inf"):
        raise ConfigurationError(f"a duration must be finite and >= 0: {text!r}")
    return seconds


def _moved(now: datetime, by: timedelta, text: str) -> datetime:
    try:
        return now + by
    except OverflowError as error:
        raise ConfigurationError(f"outside the supported date range: {text!r}") from error


def _duration(text: str) -> timedelta | None:
    if not text.upper().startswith("P"):
        return None
    try:
        parsed = pendulum.parse(text)
    except (ParserError, ValueError, OverflowError):
        return None
    return parsed.as_timedelta() if isinstance(parsed, pendulum.Duration) else None


def _examples() -> str:
    return "write 2026-12-01 02:00 Europe/Berlin, 2026-12-01T02:00Z, now, or PT5M"
