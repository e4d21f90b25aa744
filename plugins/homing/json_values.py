"""JSON values: the one check of what contents, headers and records may hold, which is a copy of it too."""

from __future__ import annotations

import math
from typing import Any

from homing.errors import UnstorableContentError

#: How many lists and dicts may be in each other: so few that whoever moves a message, or keeps it when it fails, can
#: copy it too, however deep he is in calls of his own.
DEEPEST = 200
#: The same of what goes into a record as it is: headers, properties, results. The record is around it.
DEEPEST_PART = DEEPEST // 2

_PLAIN = frozenset({bool, type(None)})
_CONTAINERS = frozenset({dict, list})
# Python writes no number of more digits, so no store could keep it.
_LONGEST = 10**4300


def copy_json(
    value: Any, what: str = "content", *, wanted: str = "JSON values, str or bytes", levels: int = DEEPEST
) -> Any:
    """A copy that shares nothing mutable with the value, which may have so many levels.

    Raises UnstorableContentError, with the path of the offending value, for anything that is not JSON.
    """
    try:
        return _copied(value, levels)
    except RecursionError:
        fault = f"{what} is nested too deeply, in more than {levels} levels, or holds itself"
    except (TypeError, ValueError):
        try:
            fault = _fault(value, what)
        except RecursionError:
            fault = f"{what} is nested too deeply, in more than {levels} levels"
    raise UnstorableContentError(f"cannot store this: {fault}; use {wanted}")


def is_too_deep(value: Any) -> bool:
    """Whether a JSON value has more levels than a message may have."""
    level = [value]
    for _ in range(DEEPEST):
        level = [
            item
            for each in level
            if type(each) in _CONTAINERS
            for item in (each.values() if type(each) is dict else each)
            if type(item) in _CONTAINERS
        ]
        if not level:
            return False
    return True


def is_unicode(text: str) -> bool:
    """Whether the text consists of characters only: a lone surrogate is none."""
    if text.isascii():
        return True
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _copied(value: Any, levels: int) -> Any:
    """The copy. Raises TypeError or ValueError, without saying where, for what is not JSON, and RecursionError for what
    has more levels."""
    kind = type(value)
    if kind is str:
        return value if value.isascii() else _copied_text(value)
    if not levels and kind in _CONTAINERS:
        raise RecursionError
    # Plain values are let through without a call: this runs for every message and every transformer.
    if kind is dict:
        return {
            key if type(key) is str and key.isascii() else _copied_key(key): (
                item
                if type(item) in _PLAIN or (type(item) is int and -_LONGEST < item < _LONGEST)
                else _copied(item, levels - 1)
            )
            for key, item in value.items()
        }
    if kind is list:
        return [
            item
            if type(item) in _PLAIN or (type(item) is int and -_LONGEST < item < _LONGEST)
            else _copied(item, levels - 1)
            for item in value
        ]
    if kind in _PLAIN or (kind is float and math.isfinite(value)) or (kind is int and -_LONGEST < value < _LONGEST):
        return value
    raise TypeError


def _copied_key(key: Any) -> str:
    if type(key) is str:
        return _copied_text(key)
    raise TypeError


def _copied_text(text: str) -> str:
    text.encode("utf-8")
    return text


def _fault(value: Any, path: str) -> str:
    """What is not JSON in a value that could not be copied, with the path to it."""
    kind = type(value)
    if kind is dict:
        for key, item in value.items():
            if type(key) is not str:
                return f"{path} has the key {_shown(key)} of type {type(key).__name__}, and JSON keys are strings"
            if not is_unicode(key):
                return f"{path} key contains a lone surrogate, which is not a character"
            if not _is_json(item):
                return _fault(item, f"{path}.{key}")
    if kind is list:
        for index, item in enumerate(value):
            if not _is_json(item):
                return _fault(item, f"{path}[{index}]")
    if kind is str:
        return f"{path} contains a lone surrogate, which is not a character"
    if kind is float:
        return f"{path} is {value}, which JSON does not have"
    if kind is int:
        return f"{path} is a number or another value that cannot be written: it has too many digits"
    return f"{path} is of type {kind.__module__}.{kind.__qualname__}"


def _is_json(value: Any) -> bool:
    try:
        _copied(value, DEEPEST)
    except (TypeError, ValueError):
        return False
    return True


def _shown(key: Any) -> str:
    try:
        return f"{key!r:.60}"
    except (Exception, SystemExit, GeneratorExit):  # noqa: BLE001 - its author's code may do anything
        return "?"
