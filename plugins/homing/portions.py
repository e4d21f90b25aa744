"""Portions: things taken some at a time, by their number and by what they weigh.

A thousand messages are a megabyte or a dozen gigabytes. Whatever is read, sent or recorded many at a time goes in
portions of at most so many bytes, so that a step needs about as much memory whatever messages hold.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

#: What the contents of one portion weigh at most, unless one thing alone weighs more.
MOST_BYTES = 16 * 2**20

Item = TypeVar("Item")


def portions(
    items: Iterable[Item], weigh: Callable[[Item], int], *, most: int = sys.maxsize, most_bytes: int | None = None
) -> Iterator[list[Item]]:
    """The items in order, at most `most` and `most_bytes` at a time; what is heavier comes alone."""
    limit = MOST_BYTES if most_bytes is None else most_bytes
    portion: list[Item] = []
    weight = 0
    for item in items:
        more = weigh(item)
        if portion and (weight + more > limit or len(portion) == most):
            yield portion
            portion, weight = [], 0
        portion.append(item)
        weight += more
    if portion:
        yield portion


def text_bytes(text: str | None) -> int:
    """How many bytes a text has in UTF-8."""
    if not text:
        return 0
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
