"""One message's way through a chain: the source flow, then every destination flow that is not done yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from homing.errors import HandlerError
from homing.failure import SOURCE, build_record
from homing.invocation.error_info import describe, text_of
from homing.invocation.interrupts import is_interrupt
from homing.message import Message, MessageRef
from homing.pipeline.attempt import snapshot_of
from homing.pipeline.context import MessageContext
from homing.pipeline.flows import Flow, SourceFlow
from homing.pipeline.outcome import DELIVERED, DROPPED, EXECUTED, FAILED, Delivery, Ended, ExecutionResult
from homing.pipeline.signals import Drop
from homing.pipeline.workers import Workers


@dataclass
class Execution:
    """What is carried, and what became of it. `done` holds the results of flows that need nothing more."""

    message: Message
    properties: Mapping[str, Any] = field(default_factory=dict)
    done: dict[str, Any] = field(default_factory=dict)
    deliveries: list[tuple[str, Delivery]] = field(default_factory=list)
    errors: dict[str, HandlerError] = field(default_factory=dict)
    dropped: str | None = None

    def run(self, source: SourceFlow, flows: Sequence[Flow], workers: Workers) -> MessageContext:
        """Runs everything; returns the context as the source flow left it. Failures are kept, not raised."""
        ctx = MessageContext(self.message, self.properties)
        try:
            source.run(ctx)
        except Drop as drop:
            self.dropped = drop.reason
            return ctx
        except HandlerError as error:
            self.errors[SOURCE] = error
            return ctx
        waiting = [flow for flow in flows if flow.name not in self.done]
        ended = workers.run_all([partial(_settle, flow, ctx) for flow in waiting])
        for flow, outcome in zip(waiting, ended, strict=True):
            if isinstance(outcome, HandlerError):
                self.errors[flow.name] = outcome
            else:
                self.deliveries.append((flow.name, outcome))
                self.done[flow.name] = outcome.result
        return ctx

    def result(self, ctx: MessageContext) -> ExecutionResult:
        """The result, if nothing failed."""
        results: dict[str, Any] = {}
        for flow, delivery in self.deliveries:
            if delivery.state == DELIVERED:
                # Two routers may reach the same destination; then the second is known by its router.
                results[flow if delivery.destination in results else delivery.destination] = delivery.result
        deliveries = tuple(delivery for _, delivery in self.deliveries)
        ctx.begin_attempt()  # so that the caller shares nothing with the handlers
        return ExecutionResult(ctx.processed_message(), results, deliveries, self.dropped, context=ctx)

    def record(self, chain: str, batch_id: str | None, ref: MessageRef | None = None) -> dict[str, Any]:
        """The failure record, if something failed."""
        return build_record(
            self.message,
            self.properties,
            errors={flow: describe(error, error.handler, error.attempts) for flow, error in self.errors.items()},
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
        """What to count."""
        counted = [EXECUTED, *(delivery.state for _, delivery in self.deliveries)]
        if self.dropped is not None:
            counted.append(DROPPED)
        if self.errors:
            counted.append(FAILED)
        return counted


def _settle(flow: Flow, ctx: MessageContext) -> Ended:
    """A flow's delivery, with its failure as a value: no destination may keep others from being awaited."""
    try:
        return flow.deliver(ctx)
    except HandlerError as error:
        return error
    except Exception as error:
        # Not a handler's doing, and still no reason to lose a message.
        if is_interrupt(error):
            raise
        failed = HandlerError(f"{flow.name} failed: {text_of(error)}", flow.name, 1, snapshot_of(ctx))
        failed.__cause__ = error
        return failed


def _reason(error: HandlerError) -> str:
    cause = error.__cause__ or error
    times = "" if error.attempts == 1 else f" (after {error.attempts} attempts)"
    return f"{error.handler}: {type(cause).__qualname__}: {text_of(cause)}{times}"
