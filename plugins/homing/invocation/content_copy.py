"""Copies of message content: any JSON value, str or bytes. Much cheaper than copy.deepcopy."""

from __future__ import annotations

import math
from typing import Any

from homing.errors import UnstorableContentError
from homing.message import encode


def clone(value: Any) -> Any:
    """A copy that shares nothing mutable with `value`, which must be a content already."""
    kind = type(value)
    if kind is dict:
        return {key: clone(item) if type(item) in _MUTABLE else item for key, item in value.items()}
    if kind is list:
        return [clone(item) if type(item) in _MUTABLE else item for item in value]
    return value


def is_mutable(value: Any) -> bool:
    """Whether sharing this content with a handler would let it change it for others."""
    return type(value) in _MUTABLE


def accept(value: Any) -> Any:
    """A copy of a content that came from outside.

    Raises UnstorableContentError, with the path of the offending value, for anything but JSON, str and bytes.
    """
    return value if type(value) is bytes else accept_json(value)


def accept_json(value: Any) -> Any:
    """A copy of a JSON value that came from outside; raises UnstorableContentError as `accept` does."""
    try:
        return _checked(value)
    except RecursionError:
        raise UnstorableContentError("the content is nested too deeply, or holds itself") from None
    except (TypeError, ValueError) as error:
        # The quick check above knows no path; `encode` looks again and says where.
        encode([value] if type(value) is bytes else value)
        raise UnstorableContentError(str(error)) from error


_MUTABLE = frozenset({dict, list})
_PLAIN = frozenset({bool, type(None)})
# Python writes no number of more digits, so no store could keep it.
_LONGEST = 10**4300


def _checked(value: Any) -> Any:
    kind = type(value)
    if kind is str:
        return value if value.isascii() else _checked_text(value)
    # Plain values are let through without a call: this runs for every message and every transformer.
    if kind is dict:
        return {
            key if type(key) is str and key.isascii() else _checked_key(key): (
                item if type(item) in _PLAIN or (type(item) is int and -_LONGEST < item < _LONGEST) else _checked(item)
            )
            for key, item in value.items()
        }
    if kind is list:
        return [item if type(item) in _PLAIN else _checked(item) for item in value]
    if kind in _PLAIN or (kind is float and math.isfinite(value)) or (kind is int and -_LONGEST < value < _LONGEST):
        return value
    raise TypeError(f"a value of type {kind.__qualname__} is not JSON")


def _checked_key(key: Any) -> str:
    if type(key) is str:
        return _checked_text(key)
    raise TypeError(f"a key of type {type(key).__qualname__} is not JSON")


def _checked_text(text: str) -> str:
    text.encode("utf-8")
    return text
