"""The names that people import from `homing`, which are fixed."""

from __future__ import annotations

import pytest

import homing

NAMES = [
    "CircuitBreaker",
    "Connection",
    "Drop",
    "ExecutionError",
    "ExecutionResult",
    "HandlerChain",
    "ListenerConfig",
    "Message",
    "MessageContext",
    "PartialFailure",
    "ReplayConfig",
    "Retry",
    "RetryPolicy",
    "StoreListener",
    "connections",
    "destination",
    "destination_router",
    "message_filter",
    "open_store",
    "processor",
    "processor_router",
    "transformer",
]


@pytest.mark.parametrize("name", NAMES)
def test_name_is_there(name: str) -> None:
    assert callable(getattr(homing, name))


def test_nothing_else_is_promised() -> None:
    assert sorted(homing.__all__) == sorted(NAMES)
