"""The application's own columns: filled from a message's headers, and read back onto them.

If a header does not fit its column, only its message is at fault. So that gets an error of its own, which names the
message, the header and the column, but never the value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError

from homing.errors import UnreadableMessageError, UnstorableContentError
from homing.failure import is_letter
from homing.message import Message, decode_headers, encode_json
from homing.stores.sql.column_types import COLUMN_TYPES, UnfitError, plain_value
from homing.stores.sql.outages import code_of, is_away

Row = Mapping[str, Any]
Write = Callable[[Connection, Sequence[Row]], None]

#: In a table's `info`: the application's own columns, name to type.
OWN = "own columns"


class HeaderColumns:
    """The application's own columns of one table, name to type."""

    def __init__(self, kinds: Mapping[str, str], *, typed: bool = True) -> None:
        """`typed` says that the database has a type of its own for each."""
        self.kinds = kinds
        self._types = [(name, COLUMN_TYPES[kind]) for name, kind in kinds.items()]
        self._typed = typed

    @classmethod
    def of(cls, table: sa.Table) -> HeaderColumns:
        return cls(table.info.get(OWN, {}))

    def __bool__(self) -> bool:
        return bool(self._types)

    def values(self, message: Message) -> dict[str, Any]:
        """What this message's headers put into the columns, each of the same name; no header, no value.

        Raises UnstorableContentError for a header that its column cannot hold. A listener's dead letter is kept
        whatever its headers are: there, such a column stays empty.
        """
        values = {}
        for name, column in self._types:
            header = message.headers.get(name)
            if header is None:
                continue
            try:
                value = column.fit(header)
            except UnfitError as fault:
                if is_letter(message):
                    continue
                raise _unfit(message.id, [name], f"which is for {self.kinds[name]}: {fault}") from None
            if self.kinds[name] == "json":
                value = encode_json(value)
            values[name] = value if self._typed else plain_value(value)
        return values

    def selected(self, known: sa.FromClause) -> list[sa.ColumnElement[Any]]:
        """What is to be read of these columns, for `merge`."""
        return [
            sa.cast(known.c[name], sa.Text).label(name) if column.as_text else known.c[name]
            for name, column in self._types
        ]

    def merge_all(self, rows: list[tuple[Any, ...]], place: int) -> list[tuple[Any, ...]]:
        """Moves what `selected` added at the ends of these rows into their headers, the text at `place`.

        Returns the rows.
        """
        width = len(self._types)
        if not width:
            return rows
        return [
            (*row[:place], self.merge(row[place], row[-width:]), *row[place + 1 : -width])
            if any_of(row[-width:])
            else row[:-width]
            for row in rows
        ]

    def merge(self, text: Any, values: Sequence[Any]) -> Any:
        """Returns the headers in this text, as a text again, with what the columns hold: plain SQL may have changed it.

        A header stays as it was written while its column holds an equal value or none. Headers that cannot be read stay
        as they are; reading the message then reports the fault.
        """
        try:
            headers = decode_headers(text)
        except UnreadableMessageError:
            return text
        held = {}
        for (name, column), value in zip(self._types, values, strict=True):
            if value is not None:
                parsed = column.parse(value)
                if not _says(headers.get(name), column.fit, parsed):
                    held[name] = column.show(parsed)
        return encode_json({**headers, **held}) if held else text


def any_of(values: Sequence[Any]) -> bool:
    """Whether one of these is not NULL."""
    return any(value is not None for value in values)


def _says(header: Any, fit: Callable[[Any], Any], value: Any) -> bool:
    try:
        return header is not None and bool(fit(header) == value)
    except UnfitError:
        return False


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
    others = {name: None if row.get(name) is not None else _sample(kind) for name, kind in columns.items()}
    unfit = [name for name, other in others.items() if refusal([{**row, name: other}]) != why]
    if not unfit and refusal([{**row, **others}]) != why:
        unfit = list(columns)
    return _unfit(row["id"], unfit, "as the database has it") if unfit else None


def _sample(kind: str) -> Any:
    value = plain_value(COLUMN_TYPES[kind].sample)
    return encode_json(value) if kind == "json" else value


def _unfit(message_id: str, names: Sequence[str], why: str) -> UnstorableContentError:
    headers = " or ".join(map(repr, names))
    return UnstorableContentError(
        f"message {message_id} cannot be stored: its header {headers} does not fit the column of that name, {why}. "
        "Nothing was stored; change the header, or the column"
    )
