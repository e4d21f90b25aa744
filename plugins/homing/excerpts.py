"""Excerpts: what is kept for people to look at, cut where it is long, and marked so.

The original content of a message is never cut: a replay starts from it. What else a ledger and a failure record hold,
such as a result, an error and the state at the point of failure, explains; its beginning does that too.
"""

from __future__ import annotations

from typing import Any

import msgspec

#: What one value takes at most, in bytes of JSON.
MOST_BYTES = 32 * 2**10

_FEW = 20  # keys of an object that is kept as one, each of its values cut
_LONG = 100  # characters of a key
_PLAIN = frozenset({bool, int, float, type(None)})


def excerpt(value: Any, most: int = MOST_BYTES) -> Any:
    """The JSON value itself; where it takes more bytes of JSON, an excerpt that says how long the whole is.

    Of an object with few keys each value is cut by itself; of anything else, its text.
    """
    if type(value) in _PLAIN or (type(value) is str and len(value) * 6 + 2 <= most):
        return value
    written = msgspec.json.encode(value)
    if len(written) <= most:
        return value
    if type(value) is dict and len(value) <= _FEW and all(len(key) <= _LONG for key in value):
        share = (most - 2) // len(value)
        return {key: excerpt(item, share - len(msgspec.json.encode(key)) - 2) for key, item in value.items()}
    text = value if type(value) is str else written.decode()
    mark = f"… (cut: {len(written)} bytes in all)"
    head = text[: max(0, most)]
    while head and len(msgspec.json.encode(head + mark)) > most:
        head = head[: len(head) * 3 // 4]
    return head + mark
