"""A trial: some messages go through a chain, whose destinations only record what they get."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from homing.errors import ConfigurationError, HandlerError
from homing.invocation.content_copy import accept
from homing.json_values import copy_json
from homing.ledger import DELIVERED, PROCESSED
from homing.message import Message
from homing.pipeline import DestinationFlow, HandlerChain, MessageContext, SourceFlow, load_chain
from homing.pipeline.flows import RouterFlow, handlers_of
from homing.pipeline.handlers import Handler
from homing.pipeline.outcome import DeliveryOutcome
from homing.pipeline.runner import run_source
from homing.testing.stand_ins import recorder_of, without_waiting

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Delivery:
    """A message as it reached a destination. `result` is what the destination returned, where it was called."""

    destination: str
    id: str
    content: Any
    headers: Mapping[str, Any]
    properties: Mapping[str, Any]
    result: Any = None


@dataclass(frozen=True)
class Dropped:
    """A message that a rule left out: for one `destination`, or for all of them where that is None.

    `handler` is the one whose rule it was, as it stands in the chain: of a routed processor, the router.
    """

    id: str
    handler: str
    reason: str
    destination: str | None = None


@dataclass(frozen=True)
class Failed:
    """A message that failed: for one `destination`, or for all of them where that is None.

    `error` is what the handler raised. The handler is named as in failure records: `priced`, or `european of crm` where
    it stands before a destination.
    """

    id: str
    handler: str
    error: BaseException
    destination: str | None = None
    attempts: int = 1


class Contents(dict[str, list[Any]]):
    """Contents by destination. To ask for a destination that there is not is an error: it would always have got
    nothing."""

    def __missing__(self, name: str) -> list[Any]:
        close = difflib.get_close_matches(name, self, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(self)}"
        raise KeyError(f"nothing is known of a destination {name!r}, which no router chose either; {hint}")


@dataclass(frozen=True)
class Trial:
    """What became of the messages of a trial, in their order. A message is in as many of the lists as it has ends."""

    deliveries: list[Delivery] = field(default_factory=list)
    dropped: list[Dropped] = field(default_factory=list)
    failed: list[Failed] = field(default_factory=list)
    #: The chain's destinations, and those that its routers chose.
    destinations: list[str] = field(default_factory=list)

    @property
    def delivered(self) -> Contents:
        """The contents that each destination got, nothing included."""
        contents = Contents({name: [] for name in self.destinations})
        for delivery in self.deliveries:
            contents[delivery.destination].append(delivery.content)
        return contents


def try_chain(chain: HandlerChain | str, messages: Iterable[Any], *, real: Collection[str] = ()) -> Trial:
    """Runs messages through a chain, or one named "module:attribute", and tells how each of them ended.

    A message is a content, which gets its position as its id ("1", "2", …), or a Message. Destinations are not called:
    each records what it is given, and fails where that does not fit the type it asks for. Those named in `real` are
    called, without waiting between attempts. All processors are called. The chain's failure store is not written.
    Connections that any of them declare are given by `with homing.connections({...}):` around the call.

    Handlers that take DataFrames run on Spark, in the session that is active or on this machine; where a message fails
    together with others, each is tried alone. Raises MissingExtraError where there is no Spark, ConfigurationError for
    no messages at all or an unknown name in `real`, MissingConnectionError for a connection that a handler to be called
    declares and nobody gave, UnstorableContentError for what no store would take.
    """
    loaded = load_chain(chain) if isinstance(chain, str) else chain
    if not isinstance(loaded, HandlerChain):
        raise ConfigurationError(f'chain must be a HandlerChain or "module:attribute", got a {type(chain).__name__}')
    run = _Run(frozenset(_names(real)), Trial(destinations=_destinations(loaded)))
    run.run(loaded, [MessageContext(message) for message in _messages(messages)])
    return run.trial


@dataclass(frozen=True)
class _Run:
    real: frozenset[str]
    trial: Trial

    def run(self, chain: HandlerChain, ctxs: Sequence[MessageContext]) -> None:
        recorded = [flow.destination for flow in chain.flows if isinstance(flow, DestinationFlow)]
        for handler in handlers_of(chain.source, chain.flows):
            if handler not in recorded or handler.name in self.real:
                handler.connections.require()
        passed = self._process(chain.source, ctxs)
        for flow in chain.flows:
            if isinstance(flow, RouterFlow):
                self._route(flow, passed)
            else:
                self._deliver(flow, passed)
        if unknown := self.real - set(self.trial.destinations):
            raise ConfigurationError(
                f"real= names {', '.join(sorted(unknown))}, to which chain {chain.name!r} delivered nothing; its "
                f"destinations are: {', '.join(self.trial.destinations) or 'none that a router chose'}"
            )

    def _process(
        self, flow: SourceFlow, ctxs: Sequence[MessageContext], *, routed: bool = False
    ) -> list[MessageContext]:
        """The messages that all processors of the flow let pass."""
        passed = list(ctxs)
        for handler in flow.processors:
            if handler.dataframe and not routed:  # no router may choose one, and calling it says so
                passed = self._process_frame(handler, passed, flow.destination)
            else:
                passed = [ctx for ctx in passed if self._passes(handler, ctx, flow.destination)]
        return passed

    def _passes(self, handler: Handler, ctx: MessageContext, destination: str) -> bool:
        outcome = run_source(SourceFlow((handler,), destination), ctx)
        if outcome.state != PROCESSED:
            self._ended(ctx, handler.name, outcome, destination or None)
        return outcome.state == PROCESSED

    def _process_frame(
        self, handler: Handler, ctxs: Sequence[MessageContext], destination: str
    ) -> list[MessageContext]:
        from homing.testing.dataframes import process_frame

        passed = []
        for before, after in process_frame(handler, ctxs):
            if isinstance(after, MessageContext):
                passed.append(after)
            elif after is None:
                reason = f"filter {handler.name} left it out"
                self.trial.dropped.append(Dropped(before.get_id(), handler.name, reason, destination or None))
            else:
                self._failed(before, handler.name, after, destination or None)
        return passed

    def _route(self, flow: RouterFlow, ctxs: Sequence[MessageContext]) -> None:
        ended, picked = flow.route_many(ctxs)
        for place, outcome in ended:
            self._ended(ctxs[place], flow.name, outcome, flow.name)
        for chosen, routed in picked.items():
            self._deliver(chosen, [ctx for _, ctx in routed], routed=True)

    def _deliver(self, flow: DestinationFlow, ctxs: Sequence[MessageContext], *, routed: bool = False) -> None:
        if flow.name not in self.trial.destinations:
            self.trial.destinations.append(flow.name)
        own = self._process(SourceFlow(flow.processors, flow.name), [ctx.copy() for ctx in ctxs], routed=routed)
        for place, outcome in sorted(self._call(flow.destination, own, routed=routed), key=lambda each: each[0]):
            self._ended(own[place], flow.name, outcome, flow.name)

    def _call(
        self, destination: Handler, ctxs: Sequence[MessageContext], *, routed: bool
    ) -> list[tuple[int, DeliveryOutcome]]:
        is_real = destination.name in self.real or (destination.dataframe and routed)
        if is_real and destination.dataframe and not routed:
            from homing.testing.dataframes import deliver_frame

            return deliver_frame(destination, ctxs)
        called = without_waiting(destination) if is_real else recorder_of(destination)
        try:
            return list(DestinationFlow((), called).deliver_many(ctxs))
        finally:
            called.close()

    def _ended(self, ctx: MessageContext, handler: str, outcome: DeliveryOutcome, destination: str | None) -> None:
        if outcome.error is not None:
            self._failed(ctx, handler, outcome.error, destination)
        elif outcome.state == DELIVERED:
            record = ctx.copy().to_record()
            seen = Delivery(outcome.destination, ctx.get_id(), ctx.copy().get_content(), record["headers"],
                            record["properties"], outcome.result)  # fmt: skip
            self.trial.deliveries.append(seen)
        else:
            reason = outcome.result or f"{handler} chose to deliver nowhere"
            self.trial.dropped.append(Dropped(ctx.get_id(), handler, reason, destination))

    def _failed(self, ctx: MessageContext, handler: str, error: BaseException, destination: str | None) -> None:
        attempts = 1
        if isinstance(error, HandlerError):
            handler, attempts, error = error.handler or handler, error.attempts, error.__cause__ or error
        # Shown by a test that fails: it may not have looked for failures.
        log.warning("message %s failed in %s", ctx.get_id(), handler, exc_info=error)
        self.trial.failed.append(Failed(ctx.get_id(), handler, error, destination, attempts))


def _destinations(chain: HandlerChain) -> list[str]:
    return [flow.name for flow in chain.flows if not isinstance(flow, RouterFlow)]


def _names(real: Collection[str]) -> Collection[str]:
    if isinstance(real, str):
        raise ConfigurationError(f"real= is a list of names, got the text {real!r}: write real=[{real!r}]")
    return real


def _messages(given: Iterable[Any]) -> list[Message]:
    """The messages of a trial, as a store would hand them out."""
    if not isinstance(given, Iterable) or isinstance(given, (str, bytes, Mapping)):
        raise ConfigurationError(
            f"messages must be a list of contents, got one {type(given).__name__}: write [message]"
        )
    messages = [_message(each, str(place)) for place, each in enumerate(given, 1)]
    if not messages:
        raise ConfigurationError("there are no messages to try the chain with")
    ids = [message.id for message in messages]
    if twice := next((each for each in ids if ids.count(each) > 1), None):
        raise ConfigurationError(f"two messages have the id {twice!r}, and what became of them could not be told apart")
    return messages


def _message(given: Any, id: str) -> Message:
    if not isinstance(given, Message):
        return Message(id, accept(given))
    fields = {**vars(given), "content": accept(given.content), "headers": copy_json(dict(given.headers))}
    return Message(**fields)
