"""Flows: what a chain runs, made from what authors write.

A single handler stands for a list of one; `([processors], destination)` is a destination with processors of
its own.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from homing.errors import ChainError, HandlerError
from homing.ledger import DROPPED, FILTERED
from homing.pipeline.attempt import call, deliver, fail, process
from homing.pipeline.batch_delivery import deliver_batch
from homing.pipeline.context import MessageContext
from homing.pipeline.handlers import DESTINATION, DESTINATION_ROUTER, PROCESSORS, Handler
from homing.pipeline.outcome import DeliveryOutcome, failed
from homing.pipeline.signals import Drop

_ROUTED = 100


@dataclass(frozen=True)
class SourceFlow:
    """The processors every message goes through, in order, before any destination; or those of one destination flow,
    which work for that `destination`."""

    processors: tuple[Handler, ...] = ()
    destination: str = ""

    def run(self, ctx: MessageContext) -> None:
        """Runs them all on `ctx`. Raises Drop, or the HandlerError of the one that failed, which names the destination
        that it works for: two flows may have the same processor."""
        try:
            for processor in self.processors:
                process(processor, ctx)
        except HandlerError as error:
            if self.destination:
                error.args = (f"destination {self.destination!r}: {error}",)
                error.handler = name_processor(error.handler, self.destination)
            raise


def name_processor(handler: str, destination: str) -> str:
    """What a destination flow's own processor is called in errors."""
    return f"{handler} of {destination}"


@dataclass(frozen=True)
class DestinationFlow:
    """One destination and the processors that work on its copy of the message."""

    processors: tuple[Handler, ...]
    destination: Handler

    @property
    def name(self) -> str:
        return self.destination.name

    def deliver(self, ctx: MessageContext) -> DeliveryOutcome:
        """Runs processors and destination on copies of `ctx`, with the destination's retries; blocking.

        What a handler raises is the outcome, and a processor that drops ends only this delivery.
        """
        own = ctx
        if self.processors:
            # Without any, the copies that every attempt of the destination gets are enough.
            own = ctx.copy()
            if (ended := self._process(own)) is not None:
                return ended
        if self.destination.batch is None:
            return deliver(self.destination, own)
        ((_, outcome),) = deliver_batch(self.destination, [own])
        return outcome

    @property
    def batch(self) -> int:
        """How many messages are worth delivering at once."""
        return self.destination.batch or 1

    @property
    def threads(self) -> int:
        """How many messages its destination is to be given at the same time."""
        return self.destination.threads

    @property
    def _own(self) -> SourceFlow:
        return SourceFlow(self.processors, self.name)

    def deliver_many(self, ctxs: Sequence[MessageContext]) -> Iterator[tuple[int, DeliveryOutcome]]:
        """Delivers each as `deliver` does, in batches where the destination takes them; blocking.

        Yields (position, how it ended) for every one, as soon as that is known and so not in order.
        """
        ready: list[tuple[int, MessageContext]] = []
        for place, ctx in enumerate(ctxs):
            if self.destination.batch is None:
                yield place, self.deliver(ctx)
                continue
            own = ctx.copy()
            if (ended := self._process(own)) is None:
                ready.append((place, own))
            else:
                yield place, ended
        for start in range(0, len(ready), self.batch):
            chunk = ready[start : start + self.batch]
            for place, outcome in deliver_batch(self.destination, [own for _, own in chunk]):
                yield chunk[place][0], outcome

    def _process(self, own: MessageContext) -> DeliveryOutcome | None:
        """Runs the processors; how it ended if they left the message out or failed."""
        try:
            self._own.run(own)
        except Drop:
            return DeliveryOutcome(self.name, FILTERED)
        except HandlerError as error:
            return failed(self.name, error)
        return None


#: What a router picked: for each flow, the messages it is to deliver and their positions.
Picked = dict[DestinationFlow, list[tuple[int, MessageContext]]]


@dataclass(frozen=True)
class RouterFlow:
    """A router that picks the destination flow for each message."""

    router: Handler
    #: The destinations it has picked, as long as they are in use: what they opened is to be closed.
    picked: weakref.WeakSet[Handler] = field(default_factory=weakref.WeakSet, compare=False, repr=False)

    @property
    def name(self) -> str:
        return self.router.name

    @property
    def batch(self) -> int:
        """How many messages are worth delivering at once: which of them go to one destination is not known before."""
        return _ROUTED

    @property
    def threads(self) -> int:
        """One, which asks the router: each destination that it picks has threads of its own."""
        return 1

    def deliver(self, ctx: MessageContext) -> DeliveryOutcome:
        """Delivers to the flow the router picks, as that flow does; DROPPED if it picks None."""
        own = ctx.copy()
        try:
            flow = self._route(own)
        except HandlerError as error:
            return failed(self.name, error)
        return DeliveryOutcome(self.name, DROPPED) if flow is None else flow.deliver(own)

    def route_many(self, ctxs: Sequence[MessageContext]) -> tuple[list[tuple[int, DeliveryOutcome]], Picked]:
        """Those that end here, with their positions, and the others by the flow that is to deliver them."""
        ended: list[tuple[int, DeliveryOutcome]] = []
        picked: Picked = {}
        for place, ctx in enumerate(ctxs):
            own = ctx.copy()
            try:
                flow = self._route(own)
            except HandlerError as error:
                ended.append((place, failed(self.name, error)))
                continue
            if flow is None:
                ended.append((place, DeliveryOutcome(self.name, DROPPED)))
            else:
                picked.setdefault(flow, []).append((place, own))
        return ended, picked

    def _route(self, own: MessageContext) -> DestinationFlow | None:
        try:
            chosen = call(self.router, own)
        except Drop:
            return None
        if chosen is None:
            return None
        try:
            flow = as_destination_flow(chosen)
            for handler in (*flow.processors, flow.destination):
                self.router.connections.cover(handler.connections)
        except ChainError as error:
            raise fail(self.router, own, error) from error
        if flow.destination.client is not None:
            self.picked.add(flow.destination)
        return flow


Flow = DestinationFlow | RouterFlow


def as_source_flow(written: Any) -> SourceFlow:
    """The source flow an author wrote: one processor or a list of them, or none. Raises ChainError."""
    if isinstance(written, SourceFlow):
        return written
    return SourceFlow(_as_processors(() if written is None else written, "source_flow"))


def as_flows(written: Any) -> tuple[Flow, ...]:
    """The flows an author wrote: one destination, router or pair, or a list of such. Raises ChainError."""
    if isinstance(written, (Handler, DestinationFlow, RouterFlow)) or _is_pair(written):
        written = [written]
    if not isinstance(written, (list, tuple)) or not written:
        raise ChainError(f"destinations_flow needs at least one destination, got {_show(written)}")
    return tuple(_as_flow(item) for item in written)


def as_destination_flow(written: Any) -> DestinationFlow:
    """The flow of one destination: the destination, or `([processors], destination)`. Raises ChainError."""
    if isinstance(written, DestinationFlow):
        return written
    processors: Any = ()
    target = written
    if isinstance(written, (list, tuple)):
        if len(written) != 2:  # noqa: PLR2004
            raise ChainError(
                f"a destination flow must be a destination or ([processors], destination), got {written!r}"
            )
        processors, target = written
    if not isinstance(target, Handler) or target.kind != DESTINATION:
        raise ChainError(f"a destination flow must end in a destination, got {_show(target)}")
    return DestinationFlow(_as_processors(processors, f"the flow of destination {target.name!r}"), target)


def handlers_of(source: SourceFlow, flows: Sequence[Flow]) -> Iterator[Handler]:
    """Every handler that was written down, in order; what a router will pick is not known before."""
    yield from source.processors
    for flow in flows:
        if isinstance(flow, RouterFlow):
            yield flow.router
        else:
            yield from flow.processors
            yield flow.destination


def _as_flow(written: Any) -> Flow:
    if isinstance(written, RouterFlow):
        return written
    if isinstance(written, Handler) and written.kind == DESTINATION_ROUTER:
        return RouterFlow(written)
    return as_destination_flow(written)


def _as_processors(written: Any, place: str) -> tuple[Handler, ...]:
    items = written if isinstance(written, (list, tuple)) else (written,)
    for item in items:
        if not isinstance(item, Handler) or item.kind not in PROCESSORS:
            raise ChainError(f"{place} takes processors, got {_show(item)}")
    return tuple(items)


def _is_pair(written: Any) -> bool:
    """Whether a tuple is one `([processors], destination)` and not a collection of flows."""
    if not isinstance(written, tuple) or len(written) != 2:  # noqa: PLR2004
        return False
    first = written[0]
    if isinstance(first, (list, tuple)):
        return all(isinstance(item, Handler) and item.kind in PROCESSORS for item in first)
    return isinstance(first, Handler) and first.kind in PROCESSORS


def _show(thing: Any) -> str:
    if isinstance(thing, Handler):
        return f"the {thing.kind} {thing.name!r}"
    if callable(thing):
        return f"{getattr(thing, '__name__', thing)!r}, which has no decorator (@destination, @transformer, ...)"
    return repr(thing)
