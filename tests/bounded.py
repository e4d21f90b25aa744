"""Calls that might hang: a test waits for them, but not for ever."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

PATIENCE = 60.0  # seconds: far more than anything here takes, far less than for ever


def outcome_of(call: Callable[[], Any], within: float = PATIENCE) -> Any:
    """What the call returns, or the exception it raises; a TimeoutError of ours when it does neither."""
    outcomes: list[Any] = []

    def run() -> None:
        try:
            outcomes.append(call())
        except BaseException as error:  # noqa: BLE001 - the caller looks at it
            outcomes.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(within)
    return outcomes[0] if outcomes else TimeoutError(f"it still waits after {within:g} s")
