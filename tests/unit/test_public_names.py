"""The names that people import from `homing`, which are fixed."""

from __future__ import annotations

import re
from pathlib import Path

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


@pytest.mark.parametrize(
    ("file", "place"),
    [
        ("docker-compose.yaml", r"image: homing:(\S+)"),
        ("SECURITY.md", r"Homing is at version (\S+)"),
        ("CHANGELOG.md", r"## (\S+)"),
    ],
)
def test_whatever_else_names_a_version_names_that_of_the_package(file: str, place: str) -> None:
    named = re.search(place, (Path(__file__).parents[2] / file).read_text())

    assert named is not None
    assert named[1] == homing.__version__
