"""Reads a handler's signature once, so that calling it for a message needs no inspection."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, get_type_hints

from homing.binding import bind
from homing.errors import ChainError, ConfigurationError
from homing.pipeline.context import MessageContext

Call = Callable[[MessageContext], Any]

_CONTEXT_NAMES = frozenset({"ctx", "context"})
_EMPTY = inspect.Parameter.empty
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_HOW = "a handler takes a MessageContext, the content, or both: def handler(order: Order, ctx: MessageContext)"


def compile_call(function: Callable[..., Any], name: str) -> Call:
    """A function from a context to what `function` returns, given the arguments its signature asks for.

    Raises ChainError for a signature no handler may have, NameError where an annotation cannot be resolved
    yet.
    """
    parameters = _required(function, name)
    is_context = [_wants_context(parameter, function, len(parameters)) for parameter in parameters]
    if len(parameters) == 1:
        return function if is_context[0] else _with_content(function, _converter(parameters[0], function, name))
    if is_context == [True, False]:
        return _with_both(_swapped(function), _converter(parameters[1], function, name))
    if is_context == [False, True]:
        return _with_both(function, _converter(parameters[0], function, name))
    raise ChainError(f"handler {name!r} has parameters that cannot be told apart; {_HOW}")


def _required(function: Callable[..., Any], name: str) -> list[inspect.Parameter]:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise ChainError(f"handler {name!r} has no readable signature: {error}") from error
    required = [
        parameter
        for parameter in signature.parameters.values()
        if parameter.default is _EMPTY
        and parameter.kind not in {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
    ]
    if len(required) not in {1, 2} or any(parameter.kind not in _POSITIONAL for parameter in required):
        raise ChainError(f"handler {name!r} has the parameters {signature}; {_HOW}")
    if required[0].name in {"self", "cls"}:
        raise ChainError(f"handler {name!r} is a method; {_HOW}")
    return required


def _wants_context(parameter: inspect.Parameter, function: Callable[..., Any], count: int) -> bool:
    annotation = parameter.annotation
    if annotation is _EMPTY:
        return count == 1 or parameter.name in _CONTEXT_NAMES
    if isinstance(annotation, str) and annotation.strip("'\" ").rpartition(".")[2] == MessageContext.__name__:
        # Many import it for the type checker only, and then its name does not resolve.
        return True
    return _resolved(parameter, function) is MessageContext


def _converter(parameter: inspect.Parameter, function: Callable[..., Any], name: str) -> Callable[[Any], Any]:
    try:
        return bind(_resolved(parameter, function))
    except ConfigurationError as error:
        raise ChainError(f"handler {name!r}, parameter {parameter.name!r}: {error}") from error


def _resolved(parameter: inspect.Parameter, function: Callable[..., Any]) -> Any:
    # Only this one annotation: what a handler says it returns may be unknown at run time.
    if parameter.annotation is _EMPTY:
        return _EMPTY
    alone = SimpleNamespace(__annotations__={parameter.name: parameter.annotation})
    names = getattr(inspect.unwrap(function), "__globals__", {})
    return get_type_hints(alone, globalns=names, include_extras=True)[parameter.name]


def _with_content(function: Callable[..., Any], convert: Callable[[Any], Any]) -> Call:
    return lambda ctx: function(convert(ctx.get_content()))


def _with_both(function: Callable[..., Any], convert: Callable[[Any], Any]) -> Call:
    return lambda ctx: function(convert(ctx.get_content()), ctx)


def _swapped(function: Callable[..., Any]) -> Callable[[Any, MessageContext], Any]:
    return lambda content, ctx: function(ctx, content)
