"""Waiting for what a store does in its own time."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import TypeVar

from homing.message import Message
from homing.store import Store

Answer = TypeVar("Answer")

#: How long a `hasty` consumer's lease lasts: long enough to acknowledge on a busy machine, short enough to wait for.
LEASE = 2.0
_PAUSE = 0.02


def soon(seconds: float) -> datetime:
    """So many seconds from now."""
    return datetime.now(timezone.utc) + timedelta(seconds=seconds)


def eventually(ask: Callable[[], Answer | None], timeout: float = 20.0) -> Answer:
    """The first answer that is not None (or False), asked for again and again."""
    deadline = time.monotonic() + timeout
    while True:
        answer = ask()
        if answer is not None and answer is not False:
            return answer
        assert time.monotonic() < deadline, f"nothing came within {timeout} s"
        time.sleep(_PAUSE)


def take(store: Store, timeout: float = 20.0) -> Message:
    """The next message, waited for: some stores need a moment to hand out what was stored."""
    return eventually(store.retrieve, timeout)


def drain(store: Store, count: int) -> list[Message]:
    """That many messages, each acknowledged before the next is asked for."""
    messages = []
    for _ in range(count):
        messages.append(take(store))
        store.acknowledge(messages[-1])
    return messages
