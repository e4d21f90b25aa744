"""What became of one message in one execution of a chain: a result, or a failure record and an error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from homing.errors import HandlerError
from homing.failure import build_record
from homing.invocation.error_info import text_of
from homing.ledger import DELIVERED, DROPPED, FAILED, PROCESSED, SOURCE_FLOW
from homing.message import Message, MessageRef
from homing.pipeline.context import MessageContext
from homing.pipeline.outcome import EXECUTED, DeliveryOutcome, ExecutionResult, describe_failure


@dataclass
class Execution:
    """What is carried, and what became of it. `done` holds the results of flows that need nothing more."""

    message: Message
    properties: Mapping[str, Any] = field(default_factory=dict)
    done: dict[str, Any] = field(default_factory=dict)
    deliveries: list[tuple[str, DeliveryOutcome]] = field(default_factory=list)
    errors: dict[str, HandlerError] = field(default_factory=dict)
    dropped: str | None = None

    def add(self, flow: str, outcome: DeliveryOutcome) -> None:
        """Takes down how it ended in one flow. What failed is kept, not raised."""
        if outcome.error is not None:
            self.errors[flow] = outcome.error
        elif flow != SOURCE_FLOW:
            self.deliveries.append((flow, outcome))
            self.done[flow] = outcome.result
        elif outcome.state != PROCESSED:
            self.dropped = outcome.result

    def result(self, ctx: MessageContext) -> ExecutionResult:
        """The result, if nothing failed; `ctx` is as the source flow left it."""
        results: dict[str, Any] = {}
        for flow, delivery in self.deliveries:
            if delivery.state == DELIVERED:
                # Two routers may reach the same destination; then the second is known by its router.
                results[flow if delivery.destination in results else delivery.destination] = delivery.result
        deliveries = tuple(delivery for _, delivery in self.deliveries)
        ctx.begin_attempt()  # so that the caller shares nothing with the handlers
        return ExecutionResult(ctx.processed_message(), results, deliveries, self.dropped, context=ctx)

    def record(self, chain: str, batch_id: str | None, ref: MessageRef | None = None) -> dict[str, Any]:
        return build_record(
            self.message,
            self.properties,
            errors={flow: describe_failure(error) for flow, error in self.errors.items()},
            done=self.done,
            snapshot={flow: error.snapshot for flow, error in self.errors.items()},
            chain=chain,
            batch_id=batch_id,
            ref=ref,
        )

    def complaint(self, chain: str) -> str:
        """Which message failed, in which handlers, and why, in one line."""
        reasons = "; ".join(_reason(error) for error in self.errors.values())
        return f"message {self.message.id} failed in chain {chain!r}: {reasons}"

    def outcomes(self) -> list[str]:
        counted = [EXECUTED, *(delivery.state for _, delivery in self.deliveries)]
        if self.dropped is not None:
            counted.append(DROPPED)
        if self.errors:
            counted.append(FAILED)
        return counted


def _reason(error: HandlerError) -> str:
    cause = error.__cause__ or error
    times = "" if error.attempts == 1 else f" (after {error.attempts} attempts)"
    return f"{error.handler}: {type(cause).__qualname__}: {text_of(cause)}{times}"
