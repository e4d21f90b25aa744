"""Delivers many messages in one call, to a destination that takes batches."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from homing.invocation.batch_result import Answer, BatchAnswerError, PartialFailure, read_partial, read_returned
from homing.invocation.interrupts import is_user_interrupt
from homing.ledger import DELIVERED, DROPPED
from homing.pipeline.attempt import fail, next_attempt
from homing.pipeline.context import MessageContext
from homing.pipeline.handlers import Handler
from homing.pipeline.outcome import DeliveryOutcome, failed
from homing.pipeline.signals import Drop


@dataclass(frozen=True)
class _Trial:
    """One message of a batch, in one attempt."""

    place: int
    ctx: MessageContext


def deliver_batch(destination: Handler, ctxs: Sequence[MessageContext]) -> Iterator[tuple[int, DeliveryOutcome]]:
    """Calls the destination with all messages, then again with those that failed, as its retry policy allows.

    Yields (position, how it ended) as soon as that is known. A call for many that raises without saying which of them
    failed is an attempt of none of them: each is then delivered alone, so that a bad message fails no good one.
    """
    yield from _attempts(destination, [_Trial(place, ctx) for place, ctx in enumerate(ctxs)], 1)


def _attempts(destination: Handler, trials: list[_Trial], attempt: int) -> Iterator[tuple[int, DeliveryOutcome]]:
    while trials:
        again: list[_Trial] = []
        delay = 0.0
        try:
            answers = _call(destination, trials)
        except _UnsaidError:
            for trial in trials:
                yield from _attempts(destination, [trial], attempt)
            return
        for trial, answer in zip(trials, answers, strict=True):
            ended = _read(destination, trial, answer, attempt)
            if isinstance(ended, float):
                again.append(trial)
                delay = max(delay, ended)
            else:
                yield trial.place, ended
        if again:
            time.sleep(delay)
        trials, attempt = again, attempt + 1


class _UnsaidError(Exception):
    """A call for several messages failed without telling for which of them."""


def _call(destination: Handler, trials: Sequence[_Trial]) -> list[Answer]:
    """One call. What does not fit the type the destination asks for is not part of it."""
    answers: list[Answer | None] = [None] * len(trials)
    items, places = [], []
    for place, trial in enumerate(trials):
        try:
            items.append(destination.item(trial.ctx.copy()))
            places.append(place)
        except BaseException as error:
            # A model's validators are its author's code, and may raise anything.
            if is_user_interrupt(error):
                raise
            answers[place] = Answer(error=error)
    if items:
        ids = [trials[place].ctx.get_id() for place in places]
        for place, answer in zip(places, _invoke(destination, items, ids), strict=True):
            answers[place] = answer
    return [answer or Answer() for answer in answers]


def _invoke(destination: Handler, items: Sequence[object], ids: Sequence[str]) -> list[Answer]:
    try:
        try:
            return read_returned(destination.invoke_batch(items), len(items))
        except PartialFailure as failure:
            return read_partial(failure, ids)
    except BatchAnswerError as error:
        # A mistake in the destination: trying again one by one would deliver everything twice for nothing.
        return [Answer(error=error)] * len(items)
    except BaseException as error:
        if is_user_interrupt(error):
            raise
        if len(items) > 1:
            raise _UnsaidError from error
        return [Answer(error=error)]


def _read(destination: Handler, trial: _Trial, answer: Answer, attempt: int) -> DeliveryOutcome | float:
    """How it ended for this message, or the seconds after which to try again."""
    error = answer.error
    if error is None:
        return DeliveryOutcome(destination.name, DELIVERED, answer.result, attempt)
    if isinstance(error, Drop):
        return DeliveryOutcome(destination.name, DROPPED, None, attempt)
    if not isinstance(error, BatchAnswerError):
        decision = next_attempt(destination, error, attempt, trial.ctx)
        if decision.retry:
            return decision.delay
    handler_error = fail(destination, trial.ctx, error)
    handler_error.__cause__, handler_error.attempts = error, attempt
    return failed(destination.name, handler_error)
