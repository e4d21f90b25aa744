"""Runner: the one place that runs the flows of a chain. How each ended is a value; whatever a handler raises is one.

Chains run here message by message, replays and small batches page by page, and Spark's executors part by part.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from functools import partial

from homing.errors import HandlerError
from homing.invocation.error_info import text_of
from homing.invocation.interrupts import is_user_interrupt
from homing.ledger import DROPPED, PROCESSED, SOURCE_FLOW
from homing.pipeline.attempt import snapshot_of
from homing.pipeline.context import MessageContext
from homing.pipeline.flows import DestinationFlow, Flow, RouterFlow, SourceFlow
from homing.pipeline.outcome import DeliveryOutcome, failed
from homing.pipeline.signals import Drop
from homing.pipeline.workers import Backlog, Workers

#: Is told how the message at a position ended, by the thread that knows it and as soon as it does.
Tell = Callable[[int, DeliveryOutcome], object]
Routed = tuple[DestinationFlow, Sequence[tuple[int, MessageContext]]]

_PROCESSED = DeliveryOutcome(SOURCE_FLOW, PROCESSED)


def run_chain(
    source: SourceFlow, flows: Sequence[Flow], ctx: MessageContext, workers: Workers, done: Container[str] = ()
) -> Iterator[tuple[str, DeliveryOutcome]]:
    """Runs the source flow, which changes `ctx`, and then at the same time every flow that is not `done`; yields how
    each ended, by its name, when the last one has. Where the source flow does not end with PROCESSED, that is all."""
    outcome = run_source(source, ctx)
    yield SOURCE_FLOW, outcome
    if outcome.state == PROCESSED:
        waiting = [flow for flow in flows if flow.name not in done]
        ended = workers.run_all([partial(_run_flow, flow, ctx) for flow in waiting])
        for flow, outcome in zip(waiting, ended, strict=True):
            yield flow.name, outcome


def run_source(processors: SourceFlow, ctx: MessageContext, left_out: str = DROPPED) -> DeliveryOutcome:
    """Runs processors, which change `ctx`. A message that they drop ends in the state `left_out`, with the reason."""
    try:
        processors.run(ctx)
    except Drop as drop:
        return DeliveryOutcome(SOURCE_FLOW, left_out, str(drop), 1)
    except HandlerError as error:
        return failed(SOURCE_FLOW, error)
    return _PROCESSED


def run_flow(flow: Flow, ctxs: Sequence[MessageContext], workers: Workers, tell: Tell) -> None:
    """Delivers these messages, in batches where the destination takes them; returns when all have ended.

    Each destination that a router picks has as many threads of its own as it asks for: one that is slow, or waits for
    its rate, does not hold up the others.
    """
    if not isinstance(flow, RouterFlow):
        if len(ctxs) == 1:  # as most are: it is worth being quick
            tell(0, _run_flow(flow, ctxs[0]))
        else:
            _run_destination(tell, (flow, list(enumerate(ctxs))))
        return
    ended, picked = flow.route_many(ctxs)
    for place, outcome in ended:
        tell(place, outcome)
    # By name, since a router may make the destination it picks.
    backlogs: dict[str, Backlog[Routed]] = {}
    for target, routed in picked.items():
        backlog = backlogs.setdefault(target.name, Backlog(partial(_run_destination, tell), threads=target.threads))
        backlog.extend((target, routed[start : start + target.batch]) for start in range(0, len(routed), target.batch))
    workers.work_off(list(backlogs.values()))


def _run_destination(tell: Tell, routed: Routed) -> None:
    flow, placed = routed
    for place, outcome in _deliver_many(flow, [ctx for _, ctx in placed]):
        tell(placed[place][0], outcome)


def _deliver_many(flow: DestinationFlow, ctxs: Sequence[MessageContext]) -> Iterator[tuple[int, DeliveryOutcome]]:
    waiting = set(range(len(ctxs)))
    try:
        for place, outcome in flow.deliver_many(ctxs):
            waiting.discard(place)
            yield place, outcome
    except Exception as error:
        if is_user_interrupt(error):
            raise
        for place in sorted(waiting):
            yield place, _unforeseen(flow, ctxs[place], error)


def _run_flow(flow: Flow, ctx: MessageContext) -> DeliveryOutcome:
    try:
        return flow.deliver(ctx)
    except Exception as error:
        if is_user_interrupt(error):
            raise
        return _unforeseen(flow, ctx, error)


def _unforeseen(flow: Flow, ctx: MessageContext, error: Exception) -> DeliveryOutcome:
    """Not a handler's doing, and still no reason to lose a message, or to keep others from being awaited."""
    handler_error = HandlerError(f"{flow.name} failed: {text_of(error)}", flow.name, 1, snapshot_of(ctx))
    handler_error.__cause__ = error
    return failed(flow.name, handler_error)
