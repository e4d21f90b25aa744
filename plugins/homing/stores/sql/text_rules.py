"""Which texts a column of the message table can keep, on every database."""

from __future__ import annotations

from homing.json_values import is_unicode

#: How many characters such a column has room for.
MOST_CHARACTERS = 255


def is_keepable(text: str) -> bool:
    """Whether databases can hold these characters at all: PostgreSQL takes no NUL, none of them a lone surrogate."""
    return "\0" not in text and is_unicode(text)


def fault_of(text: str) -> str | None:
    """Why a column cannot keep this text, which is not repeated; None when it can."""
    if len(text) > MOST_CHARACTERS:
        return f"has {len(text)} characters, and there is room for {MOST_CHARACTERS}"
    return None if is_keepable(text) else "holds a NUL or a lone surrogate, which not every store can keep"
