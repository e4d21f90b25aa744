"""Flows run apart from their chains."""

from __future__ import annotations

from collections.abc import Sequence

from homing.pipeline import Flow, MessageContext
from homing.pipeline.outcome import DeliveryOutcome
from homing.pipeline.runner import run_flow
from homing.pipeline.workers import Workers


def deliver_many(flow: Flow, contexts: Sequence[MessageContext]) -> dict[int, DeliveryOutcome]:
    """How each of these messages ended, by its position."""
    ended: dict[int, DeliveryOutcome] = {}
    with Workers("test", 1) as workers:
        run_flow(flow, contexts, workers, ended.__setitem__)
    return ended
