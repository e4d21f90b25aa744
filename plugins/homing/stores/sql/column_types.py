"""The types of the application's own columns: how each is declared, which headers fit, and how it becomes a header.

A header is JSON. So a time becomes its ISO 8601 text. A decimal becomes a number, or the text of its digits if a number
would round it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from datetime import time as time_of_day
from decimal import Decimal, InvalidOperation
from typing import Any

import msgspec
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.types import BigInteger, String, TypeEngine, UserDefinedType

from homing.errors import UnstorableContentError
from homing.message import encode_json
from homing.row import fault_of

_WHOLE = re.compile(r"[+-]?[0-9]{1,20}", re.ASCII)
_NUMBER = re.compile(r"[+-]?[0-9]{1,40}(\.[0-9]{1,40})?([eE][+-]?[0-9]{1,3})?", re.ASCII)
_TIME = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})(?:[T ]([0-9]{2}:[0-9]{2})(?::([0-9]{2})(?:\.([0-9]{1,6}))?)?)?"
    r" ?(?:(Z)|([+-])([0-9]{2})(?::?([0-9]{2}))?)?",
    re.ASCII,
)
_FIRST_YEAR = 1000  # MariaDB promises none before it
#: How many digits of a decimal come back as they were from every database: SQLite keeps it as a float.
_DIGITS, _PLACES = 15, 9


class UnfitError(ValueError):
    """A header that a column cannot hold. The text says why, without the value."""


class Verbatim(UserDefinedType[Any]):
    """A type that each database spells in its own way. Its values are passed to and from the driver as they are."""

    cache_ok = True

    def __init__(self, postgresql: str, mysql: str, sqlite: str) -> None:
        self.postgresql = postgresql
        self.mysql = mysql
        self.sqlite = sqlite


@compiles(Verbatim)
def _spell(element: Verbatim, compiler: Any, **_options: Any) -> str:
    name = compiler.dialect.name
    return element.mysql if name in ("mysql", "mariadb") else element.sqlite if name == "sqlite" else element.postgresql


@dataclass(frozen=True)
class ColumnType:
    """A type that a column of the application may have.

    `fit` turns a header into the column's value, or raises UnfitError. `parse` turns what the database gives into such
    a value; SQLite may also give values of other types, which it turns into something else. `show` turns what `parse`
    returned into a header.
    """

    sql: TypeEngine[Any]
    fit: Callable[[Any], Any]
    parse: Callable[[Any], Any]
    show: Callable[[Any], Any]
    #: A value that fits.
    sample: Any
    #: Whether to read the column as text. Otherwise a driver that refuses one value refuses the whole page.
    as_text: bool = False


def plain_value(value: Any) -> Any:
    """A column's value for a database without such a type, where it is a text or number."""
    if isinstance(value, datetime):
        return value.replace(tzinfo=None).isoformat(" ", "microseconds")
    return str(value) if isinstance(value, Decimal) else value


# -- text and whole numbers ----------------------------------------------------------------------------------------


def _fit_text(header: Any) -> str:
    if type(header) not in (str, int, float, bool):
        raise UnfitError(f"it is a {type(header).__name__}")
    text = header if type(header) is str else encode_json(header)
    fault = fault_of(text)
    if fault:
        raise UnfitError(f"it {fault}")
    return text


def _parse_text(value: Any) -> str:
    shown = _show_any(value)
    return shown if isinstance(shown, str) else encode_json(shown)


def _fit_whole(header: Any) -> int:
    number = int(header) if type(header) is str and _WHOLE.fullmatch(header) else header
    if type(number) is not int:
        raise UnfitError("it is not a whole number")
    if not -(2**63) <= number < 2**63:
        raise UnfitError("it has more than 64 bits")
    return number


# -- numbers with fractions ----------------------------------------------------------------------------------------


def _number_in(header: Any) -> Decimal:
    """The number that a header says, to the last digit."""
    kind = type(header)
    if kind is int and -(10**400) < header < 10**400:
        return Decimal(header)
    if kind is float and math.isfinite(header):
        return Decimal(repr(header))
    if kind is str and _NUMBER.fullmatch(header):
        return Decimal(header)
    raise UnfitError("it is not a number")


def _fit_decimal(header: Any) -> Decimal:
    number = _number_in(header)
    _, digits, exponent = _normal(number).as_tuple()
    places = max(0, -int(exponent))
    before = len(digits) + int(exponent)
    if places > _PLACES or max(before, 0) + places > _DIGITS or len(digits) > _DIGITS:
        raise UnfitError(f"it has more than {_DIGITS} digits, or more than {_PLACES} after the point")
    return number


def _fit_double(header: Any) -> float:
    number = _number_in(header)
    double = float(number)
    if not math.isfinite(double) or (number and Decimal(repr(double)) != number and Decimal(double) != number):
        raise UnfitError("it has more digits than a double keeps, or is out of its range")
    return double


def _parse_decimal(value: Any) -> Any:
    try:
        return Decimal(str(value))
    except InvalidOperation:
        return _show_any(value)


def _parse_double(value: Any) -> Any:
    return float(value) if isinstance(value, (int, float, Decimal)) else _show_any(value)


def _show_number(value: Any) -> Any:
    """A number where that is exact, else the text of its digits; other values as they are, or as text."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if not isinstance(value, Decimal):
        return value
    if not value.is_finite():
        return str(value)
    if value == value.to_integral_value() and abs(value) < 2**63:
        return int(value)
    return float(value) if Decimal(repr(float(value))) == value else format(_normal(value), "f")


def _normal(number: Decimal) -> Decimal:
    """Without zeros at its end; as `normalize()`, which would round it too."""
    sign, digits, exponent = number.as_tuple()
    kept = list(digits)
    end = int(exponent)
    while len(kept) > 1 and kept[-1] == 0:
        kept.pop()
        end += 1
    return Decimal((sign, tuple(kept), 0 if kept == [0] else end))


# -- times ---------------------------------------------------------------------------------------------------------


def _fit_time(header: Any) -> datetime:
    found = _TIME.fullmatch(header) if type(header) is str else None
    if found is None or found[2] is None:
        raise UnfitError("it is not a time as 2026-11-18T20:15:00.5+01:00 is, to the microsecond at most")
    if not (found[5] or found[6]):
        raise UnfitError("it has no time zone; write Z for UTC, or the offset")
    try:
        time = _utc(found)
    except (ValueError, OverflowError):
        raise UnfitError("the time does not exist") from None
    if time.year < _FIRST_YEAR:
        raise UnfitError(f"it is before the year {_FIRST_YEAR}")
    return time


def _parse_time(value: Any) -> Any:
    """Without an offset, it is in UTC."""
    found = _TIME.fullmatch(str(value)) if isinstance(value, (str, datetime)) else None
    try:
        return _show_any(value) if found is None else _utc(found)
    except (ValueError, OverflowError):
        return _show_any(value)


def _utc(found: re.Match[str]) -> datetime:
    day, minutes, seconds, fraction, _, sign, hours, rest = found.groups()
    text = f"{day}T{minutes or '00:00'}:{seconds or '00'}.{(fraction or '').ljust(6, '0')}+00:00"
    offset = timedelta(hours=int(hours or 0), minutes=int(rest or 0))
    if offset >= timedelta(days=1):
        raise ValueError("an offset of a day or more")
    return datetime.fromisoformat(text) - (-offset if sign == "-" else offset)


def _show_time(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value


# -- truth values and JSON -----------------------------------------------------------------------------------------


def _fit_boolean(header: Any) -> bool:
    known = {"true": True, "false": False}
    truth = known.get(header) if type(header) is str else header
    if type(truth) is not bool:
        raise UnfitError("it is not true or false")
    return truth


def _parse_boolean(value: Any) -> Any:
    return bool(value) if isinstance(value, int) and value in (0, 1) else _show_any(value)


def _fit_json(header: Any) -> Any:
    try:
        text = encode_json(header)
    except UnstorableContentError:
        raise UnfitError("it cannot be written as JSON") from None
    if "\\u0000" in text and _has_nul(header):
        raise UnfitError("it holds a NUL, which not every store can keep")
    return header


def _has_nul(value: Any) -> bool:
    if isinstance(value, dict):
        return any(_has_nul(key) or _has_nul(each) for key, each in value.items())
    return any(map(_has_nul, value)) if isinstance(value, list) else isinstance(value, str) and "\0" in value


def _parse_json(value: Any) -> Any:
    try:
        return msgspec.json.decode(value)
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError):
        return _show_any(value)


def _show_any(value: Any) -> Any:
    """Whatever a driver gives, as JSON: people give a column another type, and SQLite takes anything in each."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, (date, datetime, time_of_day)):
        return value.isoformat()
    if value is None or type(value) in (str, bool, int):
        return value
    return _show_number(value) if isinstance(value, (float, Decimal)) else str(value)


def _same(value: Any) -> Any:
    return value


#: The types an application may give to columns of its own, by the names it uses for them.
COLUMN_TYPES: Mapping[str, ColumnType] = {
    "text": ColumnType(String(255), _fit_text, _parse_text, _same, "0"),
    "bigint": ColumnType(BigInteger(), _fit_whole, _show_any, _same, 0),
    "decimal": ColumnType(
        Verbatim("NUMERIC(24, 9)", "DECIMAL(24, 9)", "NUMERIC"),
        *(_fit_decimal, _parse_decimal, _show_number, Decimal(0)),
        as_text=True,
    ),
    "double": ColumnType(
        Verbatim("DOUBLE PRECISION", "DOUBLE", "DOUBLE"), _fit_double, _parse_double, _show_number, 0.0
    ),
    "time": ColumnType(
        Verbatim("TIMESTAMP WITH TIME ZONE", "DATETIME(6)", "TEXT"),
        *(_fit_time, _parse_time, _show_time, datetime(2000, 1, 1, tzinfo=timezone.utc)),
        as_text=True,
    ),
    "boolean": ColumnType(Verbatim("BOOLEAN", "BOOLEAN", "BOOLEAN"), _fit_boolean, _parse_boolean, _same, False),
    "json": ColumnType(Verbatim("JSON", "JSON", "TEXT"), _fit_json, _parse_json, _same, 0, as_text=True),
}
