"""Delivery: one message that a listener works on."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from homing.invocation.content_copy import clone
from homing.message import Message
from homing.store import ATTEMPTS


@dataclass(eq=False)
class Delivery:
    """A message, from when it was taken until it is settled."""

    message: Message
    #: What the next attempt starts from: the message's content, unless a service got part of the way.
    content: Any = None
    has_moved: bool = False
    #: Whether that content is a failure record, which a chain made of the message.
    is_record: bool = False
    #: What it is called when it is stored anew.
    successor: str | None = None
    #: Attempts so far, those before it went back to its store included.
    attempts: int = 0
    began: int = 0
    #: Whether to deliver it by itself: it may crash a batch.
    isolated: bool = False
    #: How to settle it and what to count then, where that is decided and only the store did not answer.
    verdict: tuple[bool, str] | None = None
    settlings: int = 0
    #: Whether the store was told that no handler has it.
    is_resting: bool = False
    #: Whether the listener no longer holds it, although its handler may still run.
    lost: bool = False
    taken_at: float = field(default_factory=time.time)

    def __post_init__(self) -> None:
        self.content = self.message.content
        headers = self.message.headers
        before = headers.get(ATTEMPTS) if isinstance(headers, Mapping) else None
        self.attempts = max(self.attempts, before if type(before) is int else 0)

    @property
    def id(self) -> str:
        return self.message.id

    @property
    def is_begun(self) -> bool:
        """Whether a handler has seen it since it was taken."""
        return self.began > 0

    @property
    def stored_at(self) -> float:
        """When it was stored, if that is known."""
        enqueued = self.message.enqueued_at
        return self.taken_at if enqueued is None else enqueued.timestamp()

    @property
    def due_at(self) -> float:
        """When it was due first, if that is known."""
        scheduled = self.message.scheduled_at
        return self.stored_at if scheduled is None else max(self.stored_at, scheduled.timestamp())

    def take_back_attempt(self) -> None:
        """The call did not tell about this message, so it does not count as an attempt. The next call is for it
        alone."""
        self.attempts -= 1
        self.isolated = True

    def begin_attempt(self) -> None:
        self.attempts += 1
        self.began += 1

    def copy(self) -> Message:
        """A copy of the message that is the handler's own; raises what copying it raises."""
        twin = object.__new__(Message)
        fields = {"content": clone(self.content), "headers": clone(dict(self.message.headers))}
        twin.__dict__.update(self.message.__dict__, **fields)
        return twin
