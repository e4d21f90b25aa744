"""Text of others, made safe to show: on a terminal, in a log line, in an error."""

from __future__ import annotations

import unicodedata

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
