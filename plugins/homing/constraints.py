"""Constraints: what a setting may be, declared once in its type, and refused in one way.

A field of a configuration is declared as `ack_wait: Positive = 30.0`; `check_fields` in its `__post_init__` holds it to
that, and `read_text` reads the same from a URL.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from functools import lru_cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from msgspec import Meta

from homing.errors import ConfigurationError

Positive = Annotated[float, Meta(gt=0)]
NotNegative = Annotated[float, Meta(ge=0)]
Share = Annotated[float, Meta(ge=0, le=1)]
Factor = Annotated[float, Meta(ge=1)]
Count = Annotated[int, Meta(ge=0)]
AtLeastOne = Annotated[int, Meta(ge=1)]
#: More than 0 seconds, as a number or a timedelta.
Duration = Annotated[float | timedelta, Meta(gt=0)]

_FLAGS = {"true": True, "false": False}
_SIGNS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
_COMPARES = {"gt": operator.gt, "ge": operator.ge, "lt": operator.lt, "le": operator.le}


@dataclass(frozen=True)
class Constraint:
    """What a value has to be. Of a type that says nothing about it, `kind` is None."""

    kind: type | None
    bounds: Meta | None = None
    choices: tuple[Any, ...] = ()
    takes_none: bool = False
    takes_timedelta: bool = False

    def holds(self, value: Any) -> bool:
        """Whether a value is as it has to be. No number is infinite, and none is True or False."""
        if value is None:
            return self.takes_none
        if self.choices:
            return value in self.choices
        if self.kind is None or self.kind in (bool, str):
            return self.kind is None or type(value) is self.kind
        if not isinstance(value, (int, float) if self.kind is float else int) or type(value) is bool:
            return False
        try:
            return math.isfinite(value) and all(_COMPARES[bound](value, limit) for bound, limit in self._limits())
        except OverflowError:
            return False  # an integer that no float can hold

    def _limits(self) -> list[tuple[str, float]]:
        return [(bound, limit) for bound in _COMPARES if (limit := getattr(self.bounds, bound, None)) is not None]

    def __str__(self) -> str:
        if self.choices:
            return f"one of {', '.join(map(str, self.choices))}"
        name = {int: "an integer", float: "a number", bool: "true or false", str: "a text"}.get(self.kind or str, "")
        limits = " and ".join(f"{_SIGNS[bound]} {limit}" for bound, limit in self._limits())
        return f"{name} {limits}".rstrip()


def check(name: str, value: Any, wanted: Any) -> Any:
    """The value, a timedelta as seconds. Raises ConfigurationError, which says what is allowed, unless it is as this
    type says."""
    rule = constraint(wanted)
    seconds = value.total_seconds() if rule.takes_timedelta and isinstance(value, timedelta) else value
    if not rule.holds(seconds):
        raise ConfigurationError(f"{name} must be {rule}, got {value!r:.80}")
    return seconds


def check_fields(config: Any, *, of: str = "") -> None:
    """Holds every field of a dataclass to its type; raises as `check`. To be called by `__post_init__`. `of` says in an
    error what it is a field of."""
    for name, wanted in constraints(type(config)).items():
        value = getattr(config, name)
        checked = check(f"{name} of {of}" if of else name, value, wanted)
        if checked is not value:
            object.__setattr__(config, name, checked)


def partition_numbers(value: Any) -> tuple[int, ...] | None:
    """Which partitions a consumer keeps to, in order; None for all. Raises ConfigurationError."""
    if value is None:
        return None
    numbers = sorted(set(value)) if isinstance(value, Collection) and not isinstance(value, str) else []
    if not numbers or not all(constraint(Count).holds(number) for number in numbers):
        raise ConfigurationError(f"partitions must be at least one integer >= 0, as in {{0, 2}}, got {value!r:.80}")
    return tuple(numbers)


def read_text(name: str, value: Any, wanted: Any) -> Any:
    """The value of this type that a text stands for; other values are taken as they are. Raises as `check`."""
    rule = constraint(wanted)
    read = value
    if isinstance(value, str) and rule.kind is not None:
        try:
            read = _FLAGS.get(value, value) if rule.kind is bool else rule.kind(value)
        except ValueError:
            read = value
    if not rule.holds(read):
        raise ConfigurationError(f"{name} must be {rule}, got {value!r:.80}")
    return read


def constraints(kind: type) -> Mapping[str, Any]:
    """The types of a dataclass's fields, by their names, as far as they say what a value may be."""
    return _constraints(kind)


@lru_cache
def _constraints(kind: Any) -> Mapping[str, Any]:
    types = get_type_hints(kind, include_extras=True)
    found = {field.name: types[field.name] for field in fields(kind) if field.init}
    return {name: wanted for name, wanted in found.items() if constraint(wanted) != Constraint(None)}


@lru_cache
def constraint(wanted: Any) -> Constraint:
    """What this type says of its values."""
    origin = get_origin(wanted)
    if origin is Annotated:
        inner, *notes = get_args(wanted)
        found = constraint(inner)
        bounds = next((note for note in notes if isinstance(note, Meta)), None)
        return Constraint(found.kind, bounds, found.choices, found.takes_none, found.takes_timedelta)
    if origin is Literal:
        return Constraint(str, choices=get_args(wanted))
    if origin in (Union, UnionType):
        parts = [part for part in get_args(wanted) if part not in (NoneType, timedelta)]
        if len(parts) == 1 and constraint(parts[0]).kind is not None:
            found, rest = constraint(parts[0]), set(get_args(wanted))
            return Constraint(found.kind, found.bounds, found.choices, NoneType in rest, timedelta in rest)
        return Constraint(None)
    return Constraint(wanted if wanted in (int, float, bool, str) else None)
