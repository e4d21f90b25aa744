"""Text of others, made safe to show: on a terminal, in a log line, in an error."""

from __future__ import annotations

import logging
import unicodedata
from typing import Any

# Control characters, which steer terminals; invisible ones, which turn text round or hide it; halves of characters; and
# the separators that end a line.
_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def printable(text: str, *, keep: str = "") -> str:
    """The text with every character that shows nothing, or steers what shows it, written as an escape.

    `keep` are characters that stay as they are.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        character if character in keep or unicodedata.category(character) not in _UNSAFE else _escaped(character)
        for character in text
    )


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


class Lines(str):
    """A text of ours that has several lines, such as a stack: log records show it as it is."""

    __slots__ = ()


def make_log_records_printable() -> None:
    """From now on, ids and other texts that are put into a log record of this package steer no terminal and begin no
    line of their own, whichever handler writes the record. Records of other packages are left alone."""
    make = logging.getLogRecordFactory()
    if getattr(make, "of_homing", False):
        return

    def make_record(*args: Any, **options: Any) -> logging.LogRecord:
        record = make(*args, **options)
        # `logging.makeLogRecord`, which formatters use to copy a record, begins with one that has no name.
        is_ours = isinstance(record.name, str) and record.name.startswith("homing.")
        if is_ours and isinstance(record.args, tuple):
            record.args = tuple(map(_printable_argument, record.args))
        return record

    make_record.of_homing = True  # type: ignore[attr-defined]
    logging.setLogRecordFactory(make_record)


def _printable_argument(argument: Any) -> Any:
    if type(argument) is str:
        return printable(argument)
    if not isinstance(argument, BaseException):
        return argument
    try:
        return printable(str(argument))
    except Exception:  # noqa: BLE001 - an author's error may say anything, and logging must not raise
        return argument
