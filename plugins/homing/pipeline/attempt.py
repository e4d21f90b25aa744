"""Runs single handlers on a context, and sees to it that whatever goes wrong becomes a HandlerError."""

from __future__ import annotations

import time
from typing import Any

from homing.errors import ChainError, CircuitOpenError, HandlerError, UnstorableContentError, causes_of
from homing.excerpts import excerpt
from homing.invocation.error_info import text_of
from homing.invocation.interrupts import is_user_interrupt
from homing.invocation.invalid_return import find_return_fault
from homing.ledger import DELIVERED, DROPPED
from homing.pipeline.context import MessageContext
from homing.pipeline.handlers import FILTER, PROCESSOR_ROUTER, PROCESSORS, TRANSFORMER, Handler
from homing.pipeline.outcome import DeliveryOutcome, failed
from homing.pipeline.signals import Drop
from homing.retry import GIVE_UP, RetryDecision

# Routers may route to routers; one that never ends is a mistake, not a reason to hang.
MAX_HOPS = 100


def call(handler: Handler, ctx: MessageContext) -> Any:
    """One attempt of one handler. Raises Drop, or HandlerError for everything else that is raised in it.

    SystemExit and its like are failures of this message too. Only what a person at the keyboard or a signal handler
    raised, to end all this, passes through.
    """
    ctx.begin_attempt()
    try:
        return handler.invoke(ctx)
    except Drop:
        raise
    except BaseException as error:
        if is_user_interrupt(error):
            raise
        raise fail(handler, ctx, error) from error


def process(handler: Handler, ctx: MessageContext) -> None:
    """Runs one processor and applies what it returned to the context. Raises Drop or HandlerError."""
    kind = handler.kind
    if kind == PROCESSOR_ROUTER:
        handler = _follow_routers(handler, ctx)
        kind = handler.kind
        if kind == PROCESSOR_ROUTER:
            return
    returned = call(handler, ctx)
    if kind == TRANSFORMER:
        _replace_content(handler, ctx, returned)
    elif kind == FILTER:
        if type(returned) is not bool:
            raise invalid_return(handler, ctx, returned, "a filter returns True or False")
        if not returned:
            raise Drop(f"filter {handler.name} returned False")
    elif returned is not None:
        rule = "a processor returns nothing; use @transformer to change the content"
        raise invalid_return(handler, ctx, returned, rule)


def deliver(destination: Handler, ctx: MessageContext) -> DeliveryOutcome:
    """Calls a destination as often as its retry policy allows. Blocks while it waits between attempts.

    Every attempt starts from a copy of `ctx`. What failed has the HandlerError of the last one.
    """
    attempt = 1
    while True:
        trial = ctx.copy()
        try:
            result = call(destination, trial)
            if (fault := find_return_fault(result)) is not None:
                raise fail(destination, trial, fault) from fault
            return DeliveryOutcome(destination.name, DELIVERED, result, attempt)
        except Drop:
            return DeliveryOutcome(destination.name, DROPPED, None, attempt)
        except HandlerError as error:
            decision = next_attempt(destination, error, attempt, ctx)
            if not decision.retry:
                error.attempts = attempt
                return failed(destination.name, error)
            time.sleep(decision.delay)
            attempt += 1


def next_attempt(destination: Handler, error: BaseException, attempt: int, ctx: MessageContext) -> RetryDecision:
    """What follows a failed attempt. What its breaker refused is not tried again here but replayed later."""
    if any(isinstance(cause, CircuitOpenError) for cause in causes_of(error)):
        return GIVE_UP
    return destination.policy.decide(error, attempt, key=ctx.get_id())


def fail(handler: Handler, ctx: MessageContext, error: BaseException) -> HandlerError:
    """The HandlerError for `error`, with the state of things at this point."""
    text = f"{handler.kind} {handler.name!r} failed on message {ctx.get_id()}: {type(error).__qualname__}: "
    return HandlerError(text + text_of(error), handler.name, 1, snapshot_of(ctx))


def snapshot_of(ctx: MessageContext) -> dict[str, Any]:
    """The state of things at this point, to look at, cut where it is long; never an error itself."""
    try:
        return dict(excerpt(ctx.to_record()))
    except RecursionError:
        return {"id": ctx.get_id(), "content": "(nested too deeply to be copied)"}


def invalid_return(handler: Handler, ctx: MessageContext, returned: Any, rule: str) -> HandlerError:
    """The HandlerError for a handler that returned what it may not."""
    cause = TypeError(f"it returned a value of type {type(returned).__qualname__}; {rule}")
    error = fail(handler, ctx, cause)
    error.__cause__ = cause
    return error


def _follow_routers(handler: Handler, ctx: MessageContext) -> Handler:
    """The processor to run in place of `handler`; a router if that one had no wish."""
    for _ in range(MAX_HOPS):
        if handler.kind != PROCESSOR_ROUTER:
            return handler
        chosen = call(handler, ctx)
        if chosen is None:
            return handler
        if not isinstance(chosen, Handler) or chosen.kind not in PROCESSORS:
            raise invalid_return(handler, ctx, chosen, "a processor router returns a decorated processor or None")
        try:
            handler.connections.cover(chosen.connections)
        except ChainError as error:
            raise fail(handler, ctx, error) from error
        handler = chosen
    cause = RecursionError(f"routed {MAX_HOPS} times without reaching a processor")
    raise fail(handler, ctx, cause) from cause


def _replace_content(handler: Handler, ctx: MessageContext, content: Any) -> None:
    try:
        ctx.replace_content(content)
    except UnstorableContentError as error:
        raise fail(handler, ctx, error) from error
