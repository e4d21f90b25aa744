"""The application's own columns: what goes into them of a message's headers, and which of them the database refused.

A header that does not fit is one message's fault, so it is told from everything else that a database may refuse: the
error names the message, the header and its column, never the value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError

from homing.errors import UnstorableContentError
from homing.message import Message, encode_json
from homing.row import fault_of
from homing.stores.sql.outages import code_of, is_away

Row = Mapping[str, Any]
Write = Callable[[Connection, Sequence[Row]], None]

_DIGITS = re.compile(r"[+-]?[0-9]{1,20}", re.ASCII)


def header_values(message: Message, columns: Mapping[str, str]) -> dict[str, Any]:
    """What this message's headers put into the columns, name to type, of the same names; no header, no value.

    Raises UnstorableContentError for a header that its column cannot hold.
    """
    values = {}
    for name, kind in columns.items():
        header = message.headers.get(name)
        if header is not None:
            values[name], fault = _FITTED[kind](header)
            if fault is not None:
                raise _unfit(message.id, [name], f"which is for {kind}: {fault}")
    return values


def _as_text(header: Any) -> tuple[Any, str | None]:
    if type(header) not in (str, int, float, bool):
        return None, f"it is a {type(header).__name__}"
    text = header if type(header) is str else encode_json(header)
    fault = fault_of(text)
    return text, fault and f"it {fault}"


def _as_bigint(header: Any) -> tuple[Any, str | None]:
    number = int(header) if type(header) is str and _DIGITS.fullmatch(header) else header
    if type(number) is not int:
        return None, "it is not a whole number"
    if not -(2**63) <= number < 2**63:
        return None, "it has more than 64 bits"
    return number, None


_FITTED: Mapping[str, Callable[[Any], tuple[Any, str | None]]] = {"text": _as_text, "bigint": _as_bigint}
# A value of each type.
_ANY: Mapping[str, Any] = {"text": "0", "bigint": 0}


def find_fault(
    connection: Connection, columns: Mapping[str, str], rows: Sequence[Row], write: Write
) -> UnstorableContentError | None:
    """Which of these rows the database refuses for what is, or is not, in these columns; None when that is not why.

    A table may be stricter than `columns=` says: made by hand with a shorter text, NOT NULL, a CHECK or another type.
    Each try is undone.
    """

    def refusal(tried: Sequence[Row]) -> str | None:
        attempt = connection.begin_nested()
        try:
            write(connection, tried)
        except DBAPIError as error:
            if is_away(error):
                raise
            return str(code_of(error) or error.orig)
        finally:
            if attempt.is_active:
                attempt.rollback()
        return None

    while len(rows) > 1:
        half = len(rows) // 2
        rows = rows[:half] if refusal(rows[:half]) else rows[half:]
    (row,) = rows
    why = refusal([row])
    if why is None:
        return None
    # Another value in the column, and it is refused no more or for another reason: the column is why.
    others = {name: None if row.get(name) is not None else _ANY[kind] for name, kind in columns.items()}
    unfit = [name for name, other in others.items() if refusal([{**row, name: other}]) != why]
    if not unfit and refusal([{**row, **others}]) != why:
        unfit = list(columns)
    return _unfit(row["id"], unfit, "as the database has it") if unfit else None


def _unfit(message_id: str, names: Sequence[str], why: str) -> UnstorableContentError:
    headers = " or ".join(map(repr, names))
    return UnstorableContentError(
        f"message {message_id} cannot be stored: its header {headers} does not fit the column of that name, {why}. "
        "Nothing was stored; mend the header, or the column"
    )
