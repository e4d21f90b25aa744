"""What stands in a destination's place in a trial: a recorder, or the destination itself without its waiting."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import wraps
from typing import Any

from homing.pipeline import MessageContext
from homing.pipeline.clients import Client
from homing.pipeline.handlers import Handler
from homing.retry import RetryDecision, RetryPolicy


def recorder_of(destination: Handler) -> Handler:
    """A destination that takes what this one takes, and does nothing with it.

    A content that does not fit the type the destination asks for fails as it would there. No client is made.
    """

    @wraps(destination.function)  # which lends it the signature
    def take(*_: Any) -> None:
        return None

    def take_any(_: MessageContext) -> None:
        return None

    return replace(
        destination,
        function=take_any if destination.dataframe else take,
        dataframe=False,
        client=None if destination.client is None else _NoClient(),
        policy=RetryPolicy(),
        guard=None,
    )


def without_waiting(destination: Handler) -> Handler:
    """The destination itself, tried as often as it says: at once, and outside its rate and its breaker."""
    policy = destination.policy
    at_once = _AtOnce(**{each.name: getattr(policy, each.name) for each in fields(policy)})
    return replace(destination, policy=at_once, guard=None)


class _NoClient(Client):
    """Stands in a client's place: nothing is made, and nothing closed."""

    def __init__(self) -> None:
        """There is nothing to be made by."""

    def get(self) -> None:
        return None

    def close(self) -> None:
        return None


class _AtOnce(RetryPolicy):
    """The same policy, without its delays."""

    def decide(self, error: BaseException, attempt: int, *, key: str = "") -> RetryDecision:
        return replace(super().decide(error, attempt, key=key), delay=0.0)
