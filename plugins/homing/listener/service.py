"""Service: what was attached to a listener, ready to be called with messages."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

from homing.errors import ConfigurationError
from homing.invocation.batch_result import Answer, BatchAnswerError, PartialFailure, read_partial, read_returned
from homing.invocation.coroutines import run
from homing.invocation.signature import Convention, compile_call, compile_item
from homing.message import Message

_CONVENTION = Convention(
    envelope=Message,
    content_of=attrgetter("content"),
    names=frozenset({"message"}),
    alone=False,
    rule="it takes the content, the Message, or both: def on_message(order: Order, message: Message)",
)


class UnsaidError(Exception):
    """A call for several messages failed without telling for which of them. Its cause is what was raised."""


class Service:
    """An object with `on_message` or `on_messages`, or a plain function, that messages are handed to."""

    def __init__(self, attached: Any) -> None:
        """Raises ConfigurationError for what cannot be called with a message."""
        self.attached = attached
        #: Whether it takes many messages at once.
        self.is_batch = hasattr(attached, "on_messages")
        #: Whether what it is handed are failure records, by its own word: only a chain's replays are.
        self.takes_records = bool(getattr(attached, "takes_records", False))
        #: The failure store that they come from, when they are listened for in another one.
        self.records_of = str(getattr(attached, "records_of", ""))
        self._function = _function_of(attached)
        self.name = _name_of(attached, self._function)
        if inspect.isgeneratorfunction(self._function) or inspect.isasyncgenfunction(self._function):
            raise ConfigurationError(f"service {self.name!r} is a generator, which would run nothing; do not yield")
        try:
            how = compile_item if self.is_batch else compile_call
            self._compiled: Callable[..., Any] = how(self._function, self.name, _CONVENTION)
        except NameError as error:
            raise ConfigurationError(
                f"service {self.name!r} has an annotation that cannot be resolved: {error}"
            ) from error

    def call(self, messages: Sequence[Message]) -> list[Answer]:
        """Hands the messages over, and returns what became of each. Blocking; waits for coroutines.

        Whatever is raised, SystemExit and its like included, is a failure of messages: of all of them if it is the only
        one; otherwise it is not known of which, and UnsaidError is raised.
        """
        if not self.is_batch:
            return [self._call_one(message) for message in messages]
        answers: list[Answer | None] = [None] * len(messages)
        items, places = [], []
        for place, message in enumerate(messages):
            try:
                items.append(self._compiled(message))
                places.append(place)
            except BaseException as error:  # noqa: BLE001 - a model's validators are its author's code
                answers[place] = Answer(error=error)
        if items:
            ids = [messages[place].id for place in places]
            for place, answer in zip(places, self._call_many(items, ids), strict=True):
                answers[place] = answer
        return [answer or Answer() for answer in answers]

    def _call_one(self, message: Message) -> Answer:
        try:
            return Answer.of(_awaited(self._compiled(message)))
        except BaseException as error:  # noqa: BLE001 - see `call`
            return Answer(error=error)

    def _call_many(self, items: list[Any], ids: Sequence[str]) -> list[Answer]:
        size = len(items)
        try:
            try:
                return read_returned(_awaited(self._function(items)), size)
            except PartialFailure as failure:
                return read_partial(failure, ids)
        except BatchAnswerError as error:
            # A mistake in the service: handing them over again one by one would mend nothing.
            return [Answer(error=error)] * size
        except BaseException as error:
            if size > 1:
                raise UnsaidError from error
            return [Answer(error=error)]


def _awaited(returned: Any) -> Any:
    return run(returned) if hasattr(type(returned), "__await__") else returned


def _function_of(attached: Any) -> Callable[..., Any]:
    if isinstance(attached, type):
        raise ConfigurationError(f"{attached.__qualname__} is a class; attach an instance of it")
    methods = [name for name in ("on_message", "on_messages") if hasattr(attached, name)]
    if len(methods) > 1:
        raise ConfigurationError(
            f"a {type(attached).__qualname__} has on_message and on_messages, and a service has one of them"
        )
    function = getattr(attached, methods[0]) if methods else attached
    if not callable(function):
        raise ConfigurationError(
            "a service must be a function or an object with on_message(content) or on_messages(contents), got "
            f"{attached!r}"
        )
    return function  # type: ignore[no-any-return]


def _name_of(attached: Any, function: Callable[..., Any]) -> str:
    """What people call it, in logs and dead letters."""
    if function is attached:
        return str(getattr(attached, "__qualname__", None) or type(attached).__qualname__)
    return f"{type(attached).__qualname__}.{getattr(function, '__name__', 'on_message')}"
