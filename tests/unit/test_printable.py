"""Text of others is shown without steering whatever shows it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homing.printable import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("order-1", "order-1"),
        ("Größe 7 €", "Größe 7 €"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("a\nb\r\tc", "a\\nb\\r\\tc"),
        ("\x9b31m", "\\x9b31m"),
        ("a\u202eb\u2028c", "a\\u202eb\\u2028c"),
        ("\ud800", "\\ud800"),
        ("\0\x7f", "\\x00\\x7f"),
    ],
)
def test_what_would_steer_a_terminal_is_written_as_an_escape(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_what_is_to_be_kept_stays() -> None:
    assert printable("a\nb\x1b", keep="\n") == "a\nb\\x1b"


@given(st.text())
def test_whatever_comes_leaves_one_line_that_can_be_written(text: str) -> None:
    shown = printable(text)

    shown.encode()
    assert len(f"x{shown}x".splitlines()) == 1
    assert not any(ord(character) < 32 or 127 <= ord(character) < 160 for character in shown)
