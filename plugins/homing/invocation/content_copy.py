"""Copies of message content: any JSON value, str or bytes. Much cheaper than copy.deepcopy."""

from __future__ import annotations

from typing import Any

from homing.json_values import copy_json


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
    return value if type(value) is bytes else copy_json(value)


_MUTABLE = frozenset({dict, list})
