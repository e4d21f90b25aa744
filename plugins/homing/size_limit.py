"""SizeLimit: how large a message may be that a store takes in, so that it can also be moved, and kept when it fails.

A message that fails is written down once more, in a failure record: its text within another text, where quotes and
line ends take two bytes and other control characters six, beside errors, results and a snapshot. What a database or a
broker takes at once must hold that record, or the message could be neither delivered nor given up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from homing.errors import TooLargeError, UnstorableContentError
from homing.failure import is_marked
from homing.message import Message, encode, encode_headers
from homing.portions import text_bytes

#: The default of `max_message_bytes`.
DEFAULT_BYTES = 16 * 2**20
#: The most it can be set to: six times as much is still less than a database takes in one text.
HIGHEST_BYTES = 128 * 2**20

# What a record holds beside its message, and a statement beside its values.
_BESIDE = 2**20
_STATEMENT = 2**14
_MOST_GROWTH = 8  # bytes that come of a character, in a record in a statement; most messages need no closer look


@dataclass(frozen=True)
class SizeLimit:
    """`most` are the bytes a message may have: content and headers as they are written down, and all other texts.

    `at_once` is what the place takes in one piece, and so of its failure record, and `called` how people there call
    that; None for no such limit. `quoted`: what is sent there is a statement with the texts in it.
    """

    most: int = DEFAULT_BYTES
    at_once: int | None = None
    called: str = ""
    quoted: bool = False

    @property
    def surely(self) -> int:
        """A message of so many characters is not too large, whichever they are."""
        return min(self.most, self.most if self.at_once is None else self.at_once // 2) // _MOST_GROWTH

    def check(self, store: str, message_id: str, content: Any, texts: Mapping[str, Any]) -> None:
        """Raises TooLargeError for a message with these texts, its content as it is written down under "message".

        What is on its way to its end, a failure record or a dead letter, may have more bytes than a message.
        """
        if sum([len(text) for text in texts.values() if type(text) is str]) <= self.surely:
            return
        size = sum(text_bytes(text) for text in texts.values() if type(text) is str)
        ends = texts.get("dead_letter_reason") is not None or is_marked(content)
        if size > self.most and not ends:
            raise TooLargeError(
                f"message {message_id} is too large for store {store!r}: it has {size} bytes as it is written down, "
                f"and max_message_bytes is {self.most}; nothing was stored. Put the content elsewhere and store where "
                f"it is, cut it into several messages, or set max_message_bytes, up to {HIGHEST_BYTES}"
            )
        if self.at_once is not None:
            needed = sum(
                self._sent(text.encode() if ends or name != "message" else msgspec.json.encode(text))
                for name, text in texts.items()
                if type(text) is str
            )
            self._refuse_beyond(self.at_once, needed, store, message_id, size, ends=ends)

    def _refuse_beyond(self, at_once: int, needed: int, store: str, message_id: str, size: int, *, ends: bool) -> None:
        left = at_once - min(_STATEMENT if ends else _BESIDE, at_once // 2)
        if needed > left:
            what = "it takes" if ends else "its failure record, should it fail, takes"
            raise TooLargeError(
                f"message {message_id} is too large for store {store!r}: it has {size} bytes, {what} {needed}, and the "
                f"server has room for {left} ({self.called} is {at_once}); nothing was stored. Put the content "
                "elsewhere and store where it is, or cut it into several messages"
            )

    def _sent(self, text: bytes) -> int:
        """How many bytes this is on its way; in a statement, quotes and such are written as two."""
        if not self.quoted:
            return len(text)
        return len(text) + sum(text.count(sign) for sign in (b'"', b"'", b"\\", b"\n", b"\r", b"\x1a"))


def weight(message: Message) -> int:
    """What a message weighs: the bytes of its content and headers, about as they are written down. Never an error: 0
    for what cannot be written down, as a foreign message may be."""
    content = message.content
    try:
        body = len(content) if type(content) in (bytes, str) else len(encode(content).body)
        return body + len(encode_headers(message.headers) or "")
    except UnstorableContentError:
        return 0
