"""The messages of a chaos run: numbered, each with a content that its number decides, and a fate for some of them."""

from __future__ import annotations

from typing import Any


def id_of(number: int) -> str:
    return f"m{number}"


def content_of(number: int) -> dict[str, Any]:
    """What was stored under this number: of every kind that can be changed on the way without anybody noticing."""
    return {
        "number": number,
        "text": f"Grüße {number}: “quoted” \\ 'and' \"so on\"\n\t\u2028 €",
        "figures": [number / 7, -number, 10**15 + number, 0, 1.0],
        "nested": {"empty": {}, "nothing": None, "yes": True, "list": [[], [None], {"": ""}]},
        "long": "x" * (number % 50 * 20),
    }


def is_poison(number: int) -> bool:
    """Whether no destination ever takes it."""
    return number % 20 == 3  # noqa: PLR2004


def is_shaky(number: int) -> bool:
    """Whether it is taken now and then."""
    return number % 20 == 7  # noqa: PLR2004


def is_unwanted(number: int) -> bool:
    """Whether the author's rule drops it."""
    return number % 20 == 11  # noqa: PLR2004


def needs_replay(number: int) -> bool:
    """Whether a destination that takes many at once fails for it, once."""
    return number % 100 == 17  # noqa: PLR2004
