"""Flows: what a chain runs, made from what authors write.

A single handler stands for a list of one; `([processors], destination)` is a destination with processors of
its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from homing.errors import ChainError
from homing.pipeline.context import MessageContext
from homing.pipeline.handlers import DESTINATION, DESTINATION_ROUTER, PROCESSORS, Handler
from homing.pipeline.outcome import DROPPED, FILTERED, Delivery
from homing.pipeline.signals import Drop
from homing.pipeline.steps import call, deliver, fail, process


@dataclass(frozen=True)
class SourceFlow:
    """The processors every message goes through, in order, before any destination."""

    processors: tuple[Handler, ...] = ()

    def run(self, ctx: MessageContext) -> None:
        """Runs them all on `ctx`. Raises Drop, or the HandlerError of the one that failed."""
        for processor in self.processors:
            process(processor, ctx)


@dataclass(frozen=True)
class DestinationFlow:
    """One destination and the processors that work on its copy of the message."""

    processors: tuple[Handler, ...]
    destination: Handler

    @property
    def name(self) -> str:
        """The destination's name."""
        return self.destination.name

    def deliver(self, ctx: MessageContext) -> Delivery:
        """Runs processors and destination on copies of `ctx`, with the destination's retries; blocking.

        Raises the HandlerError of the handler that failed. A processor that drops ends only this delivery.
        """
        own = ctx.copy()
        try:
            for processor in self.processors:
                process(processor, own)
        except Drop:
            return Delivery(self.name, FILTERED)
        return deliver(self.destination, own)


@dataclass(frozen=True)
class RouterFlow:
    """A router that picks the destination flow for each message."""

    router: Handler

    @property
    def name(self) -> str:
        """The router's name."""
        return self.router.name

    def deliver(self, ctx: MessageContext) -> Delivery:
        """Delivers to the flow the router picks, as that flow does; DROPPED if it picks None."""
        own = ctx.copy()
        try:
            chosen = call(self.router, own)
        except Drop:
            return Delivery(self.name, DROPPED)
        if chosen is None:
            return Delivery(self.name, DROPPED)
        try:
            flow = as_destination_flow(chosen)
        except ChainError as error:
            raise fail(self.router, own, error) from error
        return flow.deliver(own)


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
        raise ChainError(f"destinations_flow needs at least one destination, and this is {_show(written)}")
    return tuple(_as_flow(item) for item in written)


def as_destination_flow(written: Any) -> DestinationFlow:
    """The flow of one destination: the destination, or `([processors], destination)`. Raises ChainError."""
    if isinstance(written, DestinationFlow):
        return written
    processors: Any = ()
    target = written
    if isinstance(written, (list, tuple)):
        if len(written) != 2:  # noqa: PLR2004
            raise ChainError(f"a destination flow is a destination or ([processors], destination), not {written!r}")
        processors, target = written
    if not isinstance(target, Handler) or target.kind != DESTINATION:
        raise ChainError(f"a destination flow ends in a destination, and this is {_show(target)}")
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
            raise ChainError(f"{place} takes processors, and this is {_show(item)}")
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
