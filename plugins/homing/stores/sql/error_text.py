"""The text of a database's error that may be shown: its code, and the names of tables and columns. Never values.

Databases quote values: PostgreSQL shows the refused row in its DETAIL, MySQL the value in the text itself. So the
content of a message would reach logs. Therefore only those parts are passed on that are known to hold no values.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, SQLAlchemyError

from homing.printable import printable
from homing.stores.sql.outages import code_of, is_away, is_sqlite

# PostgreSQL's classes whose texts are about statements, names and rights.
_ABOUT_NAMES = ("0A", "28", "3D", "3F", "42", "54", "55")
# The same of MySQL's numbers: tables and columns that are not there or not allowed.
_NAME_NUMBERS = {1050, 1051, 1054, 1060, 1061, 1091, 1103, 1142, 1143, 1146, 1227, 1370, 1932}
# PostgreSQL's own fields for names, and what they are.
_FIELDS = {"constraint_name": "constraint", "table_name": "table", "column_name": "column", "datatype_name": "type"}
# Where MySQL names a key, a column or a constraint. At the end of its text, since a value may say the same.
_NAMED = (
    re.compile(r" for (?P<what>key|column) (?P<name>[^ ]+)(?: at row \d+)?$"),
    re.compile(r"^(?P<what>Column|Field) (?P<name>'[^']*') (?:cannot be null|doesn't have a default value)$"),
    re.compile(r"^(?P<what>CONSTRAINT) (?P<name>`[^`]*`) failed for `[^`]*`\.`[^`]*`$"),
    re.compile(r"^Check (?P<what>constraint) (?P<name>'[^']*') is violated\.?$"),
    re.compile(r", (?P<what>CONSTRAINT) (?P<name>`[^`]*`) FOREIGN KEY \(`[^`]*`\) REFERENCES .*\)$"),
)
# All that follows in SQLite's one text that has a value in it.
_SQLITE_VALUE = re.compile(r" with text .*", re.DOTALL)


def complaint(error: SQLAlchemyError) -> str:
    """The error in one line, without a value in it."""
    if not isinstance(error, DBAPIError) or error.orig is None:
        return type(error).__name__
    return printable(_complaint(error, error.orig))


def _complaint(error: DBAPIError, original: Any) -> str:
    kind, code = type(original).__name__, code_of(error)
    if is_sqlite(error):
        return _SQLITE_VALUE.sub("", str(original))
    if isinstance(code, int):
        text = str(original.args[1]) if len(original.args) > 1 else kind
        if is_away(error) or code in _NAME_NUMBERS:
            return f"{text} (error {code})"
        return ", ".join([f"{kind} (error {code})", *_named(text)])
    if code is None:
        # No answer of the server: the driver's own words, about a connection or about what it was given.
        words = str(original).strip() if isinstance(error, OperationalError | InterfaceError) else ""
        return words or kind
    if is_away(error) or code.startswith(_ABOUT_NAMES):
        return f"{original.diag.message_primary or kind} (SQLSTATE {code})"
    names = [f"{what} {name}" for field, what in _FIELDS.items() if (name := getattr(original.diag, field))]
    return ", ".join([f"{kind} (SQLSTATE {code})", *names])


def _named(text: str) -> Iterator[str]:
    for pattern in _NAMED:
        if found := pattern.search(text):
            yield f"{found['what'].lower()} {found['name']}"
            return
