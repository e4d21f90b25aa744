"""How it ended: for one destination, for a whole message, and in numbers for a chain."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from homing.errors import HandlerError, HandlersFailedError
from homing.invocation.error_info import describe
from homing.invocation.fork_safety import start_over_after_fork
from homing.ledger import DELIVERED, DROPPED, FAILED, FILTERED
from homing.message import Message
from homing.pipeline.context import MessageContext

# What a chain counts besides the states of its deliveries.
EXECUTED = "executed"
COUNTED = (EXECUTED, DELIVERED, FILTERED, DROPPED, FAILED)


class DeliveryOutcome(NamedTuple):
    """How a message ended in one flow: `state` is DELIVERED, FILTERED, DROPPED or FAILED; in the source flow, PROCESSED
    in place of the first two. All but FAILED are final: a replay skips them.

    `destination` is the one that was reached; of a router that chose none, and of what failed, the flow. `attempts`
    counts the calls of the handler that ended it. `error` has what a handler failed with, and the state of things then.
    A tuple, because every delivery makes one.
    """

    destination: str
    state: str
    result: Any = None
    attempts: int = 0
    error: HandlerError | None = None


def failed(flow: str, error: HandlerError) -> DeliveryOutcome:
    return DeliveryOutcome(flow, FAILED, None, error.attempts, error)


def describe_failure(error: HandlerError) -> dict[str, Any]:
    """What a handler failed with, as failure records and ledgers have it."""
    return describe(error.__cause__ or error, error.handler, error.attempts)


@dataclass(frozen=True)
class ExecutionResult:
    """A message that went all the way, or was dropped by a rule its author wrote.

    `message` carries the content and headers as the source flow left them, and `context` also the properties; what a
    destination flow's own processors changed stays with their destination. `destination_results` maps each destination
    that delivered in this execution to what it returned. `dropped` is the reason when the source flow dropped it.
    """

    message: Message
    destination_results: dict[str, Any]
    deliveries: tuple[DeliveryOutcome, ...] = ()
    dropped: str | None = None
    context: MessageContext = field(kw_only=True, compare=False, repr=False)


class ExecutionError(HandlersFailedError):
    """A chain could not carry a message all the way; the text says which message, which handlers and why.

    `errors` has what each of them failed with: a listener's retry policy looks there. `message` holds the failure
    record as its content, and is what `chain.replay` takes. It is complete even when the failure store could not be
    written; `kept` says whether that store has it.
    """

    def __init__(self, text: str, message: Message, kept: bool = False, *, errors: Sequence[HandlerError] = ()) -> None:
        super().__init__(text, errors)
        self.message = message
        self.kept = kept

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.message, self.kept)


@dataclass(eq=False)
class Counters:
    """How many messages and deliveries of a chain ended in each state. Thread-safe."""

    _counter: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.start_over()
        start_over_after_fork(self)

    def start_over(self) -> None:
        """Called in a forked process, which counts on from here."""
        self._lock = threading.Lock()

    def add(self, *outcomes: str) -> None:
        with self._lock:
            for outcome in outcomes:
                self._counter[outcome] += 1

    def read(self) -> dict[str, int]:
        """Every count so far, zeros included."""
        with self._lock:
            return {outcome: self._counter[outcome] for outcome in COUNTED}
