"""Reads a handler's signature once, so that calling it for a message needs no inspection.

A handler is given an envelope (a MessageContext in a chain, a Message in a listener), the content bound to the type it
asks for, or both. A handler of batches is given a list of the one or the other.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, get_args, get_origin, get_type_hints

from homing.binding import Converter, bind
from homing.errors import ConfigurationError

Function = Callable[..., Any]

_EMPTY = inspect.Parameter.empty
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_LISTS = (list, Sequence)


@dataclass(frozen=True)
class Convention:
    """What handlers of one sort are called with."""

    envelope: type
    content_of: Callable[[Any], Any]
    #: Names by which a parameter without annotation asks for the envelope.
    names: frozenset[str]
    #: Whether an only parameter without annotation asks for the envelope, whatever its name.
    alone: bool
    #: The rule in words, for error texts.
    rule: str
    #: What is raised for a signature that breaks it.
    error: type[ConfigurationError] = ConfigurationError


def compile_call(function: Function, name: str, convention: Convention, *, client: bool = False) -> Function:
    """A function from an envelope to what `function` returns, given the arguments its signature asks for.

    With `client`, the last parameter is for a client, which the compiled function takes second. Raises the convention's
    error for a signature no handler may have, NameError where an annotation cannot be resolved yet.
    """
    parameters = _required(function, name, convention, client)
    is_envelope = [_wants_envelope(parameter, function, len(parameters), convention) for parameter in parameters]
    content_of = convention.content_of
    if is_envelope == [True]:
        return function
    if is_envelope == [False]:
        convert = _converter(_resolved(parameters[0], function), parameters[0], name, convention)
        return lambda envelope, *rest: function(convert(content_of(envelope)), *rest)
    if is_envelope == [True, False]:
        convert = _converter(_resolved(parameters[1], function), parameters[1], name, convention)
        return lambda envelope, *rest: function(envelope, convert(content_of(envelope)), *rest)
    if is_envelope == [False, True]:
        convert = _converter(_resolved(parameters[0], function), parameters[0], name, convention)
        return lambda envelope, *rest: function(convert(content_of(envelope)), envelope, *rest)
    raise convention.error(f"handler {name!r} has parameters that cannot be told apart; {convention.rule}")


def compile_item(
    function: Function, name: str, convention: Convention, *, client: bool = False
) -> Callable[[Any], Any]:
    """For a handler of batches: a function from an envelope to what stands for it in the handler's list.

    Raises as `compile_call` does.
    """
    parameters = _required(function, name, convention, client)
    if len(parameters) != 1:
        raise convention.error(f"handler {name!r} takes batches, so it has one parameter, a list; {convention.rule}")
    parameter = parameters[0]
    item = _item_annotation(parameter, function, name, convention)
    if item is convention.envelope or (item is _EMPTY and convention.alone):
        return lambda envelope: envelope
    convert, content_of = _converter(item, parameter, name, convention), convention.content_of
    return lambda envelope: convert(content_of(envelope))


def _required(function: Function, name: str, convention: Convention, client: bool) -> list[inspect.Parameter]:
    """The parameters that are about the message."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise convention.error(f"handler {name!r} has no readable signature: {error}") from error
    required = [
        parameter
        for parameter in signature.parameters.values()
        if parameter.default is _EMPTY
        and parameter.kind not in {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
    ]
    about_message = required[:-1] if client else required
    if len(about_message) not in {1, 2} or any(parameter.kind not in _POSITIONAL for parameter in required):
        last = ", and its last parameter is for the client that setup makes" if client else ""
        raise convention.error(f"handler {name!r} has the parameters {signature}; {convention.rule}{last}")
    if required[0].name in {"self", "cls"}:
        raise convention.error(f"handler {name!r} is a method; {convention.rule}")
    return about_message


def _wants_envelope(parameter: inspect.Parameter, function: Function, count: int, convention: Convention) -> bool:
    annotation = parameter.annotation
    if annotation is _EMPTY:
        return convention.alone if count == 1 else parameter.name in convention.names
    if isinstance(annotation, str) and _names_envelope(annotation.strip("'\" "), convention):
        return True
    return _resolved(parameter, function) is convention.envelope


def _names_envelope(annotation: str, convention: Convention) -> bool:
    # Many import it for the type checker only, and then its name does not resolve.
    return annotation.rpartition(".")[2] == convention.envelope.__name__


def _item_annotation(parameter: inspect.Parameter, function: Function, name: str, convention: Convention) -> Any:
    written = parameter.annotation
    if isinstance(written, str) and written.strip("'\" ").endswith("]"):
        inside = written.strip("'\" ").partition("[")[2][:-1]
        if _names_envelope(inside, convention):
            return convention.envelope
    annotation = _resolved(parameter, function)
    if annotation is _EMPTY or annotation is Any or annotation in _LISTS:
        return _EMPTY
    if get_origin(annotation) not in _LISTS:
        raise convention.error(
            f"handler {name!r} takes batches, so its parameter {parameter.name!r} must be a list, got {annotation}"
        )
    return get_args(annotation)[0]


def _converter(annotation: Any, parameter: inspect.Parameter, name: str, convention: Convention) -> Converter:
    try:
        return bind(annotation)
    except ConfigurationError as error:
        raise convention.error(f"handler {name!r}, parameter {parameter.name!r}: {error}") from error


def _resolved(parameter: inspect.Parameter, function: Function) -> Any:
    # Only this one annotation: what a handler says it returns may be unknown at run time.
    if parameter.annotation is _EMPTY:
        return _EMPTY
    alone = SimpleNamespace(__annotations__={parameter.name: parameter.annotation})
    names = getattr(inspect.unwrap(function), "__globals__", {})
    return get_type_hints(alone, globalns=names, include_extras=True)[parameter.name]
