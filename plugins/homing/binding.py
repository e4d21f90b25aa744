"""Turns the type a handler asks for into a converter of message content."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import msgspec

from homing.errors import BindingError, ConfigurationError

Converter = Callable[[Any], Any]

_UNTYPED = (Any, object, inspect.Parameter.empty)


def bind(annotation: Any) -> Converter:
    """A function that turns a content into `annotation`, raising BindingError where it does not fit.

    Understands dataclasses, TypedDicts, msgspec structs, pydantic models, the built-in types and their
    generics. Nothing is coerced: "1" is not an int, except by a pydantic model that allows it. `Any`, `object`
    and a missing annotation pass the content on as it is. Raises ConfigurationError for a type no content can
    be turned into.
    """
    try:
        return _bind_once(annotation)
    except TypeError as error:
        # Annotated[...] with an unhashable part cannot be a cache key.
        if "unhashable" not in str(error):
            raise
        return _make_converter(annotation)


def describe_type(annotation: Any) -> str:
    """The name people know a type by: `Order`, `list[Order]`."""
    if isinstance(annotation, type) and not hasattr(annotation, "__origin__"):
        return annotation.__qualname__
    return str(annotation).replace("typing.", "")


def _make_converter(annotation: Any) -> Converter:
    if any(annotation is untyped for untyped in _UNTYPED):
        return _same
    if annotation is bytes:
        # msgspec would read a str as base64, and a text message is not that.
        return _only_bytes
    if _is_pydantic_model(annotation):
        return _pydantic_converter(annotation)
    _refuse_unusable(annotation)

    def convert(content: Any) -> Any:
        try:
            return msgspec.convert(content, annotation, dec_hook=_convert_nested)
        except msgspec.ValidationError as error:
            raise BindingError(f"content does not fit {describe_type(annotation)}: {error}") from error

    return convert


_bind_once = lru_cache(maxsize=1024)(_make_converter)


def _same(content: Any) -> Any:
    return content


def _only_bytes(content: Any) -> bytes:
    if not isinstance(content, bytes):
        raise BindingError(f"content does not fit bytes: expected `bytes`, got `{type(content).__name__}`")
    return content


def _pydantic_converter(model: Any) -> Converter:
    from pydantic import ValidationError

    def convert(content: Any) -> Any:
        try:
            return model.model_validate(content)
        except ValidationError as error:
            raise BindingError(f"content does not fit {describe_type(model)}: {_reasons(error)}") from None

    return convert


def _convert_nested(kind: type, value: Any) -> Any:
    """Called by msgspec for a type inside another that it does not know itself."""
    if not _is_pydantic_model(kind):
        raise BindingError(f"content cannot be turned into {describe_type(kind)}: {_WHAT_BINDS}")
    from pydantic import ValidationError

    try:
        return kind.model_validate(value)  # type: ignore[attr-defined]
    except ValidationError as error:
        raise ValueError(_reasons(error)) from None


def _reasons(error: Any) -> str:
    """Why pydantic refused, without the values: payloads do not belong into error texts. Its own error, which shows
    them, is not told as the cause."""
    faults = error.errors(include_url=False, include_context=False, include_input=False)
    return "; ".join(f"{'.'.join(map(str, fault['loc'])) or '$'}: {fault['msg']}" for fault in faults)


def _is_pydantic_model(annotation: Any) -> bool:
    # A model's module has imported pydantic already, so an optional package is never loaded for
    # nothing.
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and isinstance(annotation, type) and issubclass(annotation, pydantic.BaseModel)


_WHAT_BINDS = "use a dataclass, TypedDict, msgspec.Struct, pydantic model or built-in type"


def _refuse_unusable(annotation: Any) -> None:
    try:
        info = msgspec.inspect.type_info(annotation)
    except TypeError as error:
        raise ConfigurationError(f"content cannot be bound to {describe_type(annotation)}: {error}") from error
    if isinstance(info, msgspec.inspect.CustomType) and not _is_pydantic_model(info.cls):
        raise ConfigurationError(f"content cannot be bound to {describe_type(annotation)}: {_WHAT_BINDS}")
