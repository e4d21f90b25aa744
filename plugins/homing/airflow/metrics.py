"""Airflow metrics, `homing.*`: what became of messages. A metric that cannot be sent never stops a delivery."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from airflow.sdk.observability import stats

from homing.delivery import Settlement
from homing.store import Store

log = logging.getLogger(__name__)


def count_messages(name: str, number: int, **tags: str) -> None:
    """Adds to a counter: accepted, claimed, delivered, dropped, failed, dead_lettered, released, replayed."""
    if number:
        _send(lambda: stats.incr(f"homing.{name}", number, tags=tags))


def count_settlement(settlement: Settlement, pipeline: str) -> None:
    for name in ("delivered", "dropped", "failed", "dead_lettered", "released"):
        count_messages(name, getattr(settlement, name), pipeline=pipeline)


def oldest_age(store: Store) -> None:
    """For how long the longest-waiting message of this store has been due, in seconds."""
    _send(lambda: stats.gauge("homing.oldest_age", store.oldest_age() or 0.0, tags={"store": store.name}))


def lag(pipeline: str, destination: str, waiting: int) -> None:
    """How many messages wait after their failure at this destination."""
    _send(lambda: stats.gauge("homing.lag", waiting, tags={"pipeline": pipeline, "destination": destination}))


def _send(send: Callable[[], Any]) -> None:
    try:
        send()
    except Exception as error:  # noqa: BLE001 - whatever is wrong with the metrics' backend
        log.debug("a metric was not sent: %s", error)
