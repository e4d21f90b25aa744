"""The destination of a chaos run: it takes messages, tells their story, and is as the nemesis wants it to be."""

from __future__ import annotations

import random
import socket
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from chaos.messages import content_of, id_of, is_poison, is_shaky, is_unwanted, needs_replay
from chaos.story import BEGAN, DROPPED, FAILED, KEPT, PASSED, TOOK, Storybook, append, lines

UP, DOWN, SLOW, LATE = "up", "down", "slow", "late"
OS_ERROR, TIMEOUT, MEMORY = "OSError", "TimeoutError", "MemoryError"
#: How the nemesis can make it; each is counted when it was so for somebody.
MODES = (DOWN, SLOW, LATE, OS_ERROR, TIMEOUT, MEMORY)
FLOWS = (FIRST_FLOW, _) = ("lake", "crm")
#: What the rule that drops is called in a message's story.
SOURCE = "source"

_JUST_NOW = 0.5
_SLOWLY = 0.2


class DestinationError(Exception):
    """The destination did not say yes."""


class Destination:
    """Takes messages. Everything it knows is in files: every process has one of its own."""

    def __init__(self, folder: Path) -> None:
        self.book = Storybook(folder)
        self._mode, self._seed = folder / "mode", folder / "seed"
        self._refused, self._late, self._bites = folder / "refused", folder / "late", folder / "bites"

    def set_seed(self, seed: str) -> None:
        """What is shaky is refused as this says, in every process."""
        self._seed.write_text(seed)

    def set_mode(self, mode: str) -> None:
        new = self._mode.with_suffix(".new")
        new.write_text(mode)
        new.replace(self._mode)

    def drops(self, message_id: str, content: Any) -> bool:
        """The author's rule: whether nobody wants this message."""
        self.book.tell(BEGAN, message_id, SOURCE)
        unwanted = is_unwanted(content["number"])
        self.book.tell(DROPPED if unwanted else PASSED, message_id, SOURCE)
        return unwanted

    def take(self, message_id: str, flow: str, content: Any) -> None:
        """Takes the message; raises for what is poison, now and then for what is shaky, and by mode."""
        self.book.tell(BEGAN, message_id, flow)
        try:
            self._take(message_id, flow, content)
        except (DestinationError, OSError, MemoryError) as error:
            append(self._refused, f"{message_id} {flow}")
            self.book.tell(FAILED, message_id, flow, type(error).__name__)
            raise

    def look_at(self, message_id: str, flow: str, content: Any) -> None:
        """Takes nothing; raises once for a few messages, in front of a destination that cannot refuse single ones."""
        if needs_replay(content["number"]) and f"{message_id} {flow}" not in lines(self._refused):
            append(self._refused, f"{message_id} {flow}")
            self.book.tell(FAILED, message_id, flow, DestinationError.__name__)
            raise DestinationError(f"{message_id} is not fit for {flow}")
        self.book.tell(KEPT, message_id, flow)

    def _take(self, message_id: str, flow: str, content: Any) -> None:
        mode, number = self._mode.read_text() if self._mode.exists() else UP, content["number"]
        if mode != UP:
            append(self._bites, mode)
        name = f"{message_id} {flow}"
        if mode in _ERRORS:
            _ERRORS[mode]()
        if mode == DOWN or is_poison(number) or (is_shaky(number) and flow == FIRST_FLOW and self._shakes(name)):
            raise DestinationError(f"{name} is not taken")
        if mode == SLOW:
            time.sleep(_SLOWLY)
        self.book.tell(TOOK, message_id, flow, fault_of(message_id, content))
        if mode == LATE:
            append(self._late, name)
            raise DestinationError(f"{name} was taken, and then something broke")

    def _shakes(self, name: str) -> bool:
        refusals = lines(self._refused).count(name)
        return random.Random(f"{self._seed.read_text()} {name} {refusals}").random() < 1 / 2  # noqa: S311

    def is_busy(self) -> bool:
        """Whether it was asked to take something just now."""
        return self.book.is_growing(_JUST_NOW)

    def bitten(self) -> Counter[str]:
        """How many calls came while it was in each mode."""
        return Counter(lines(self._bites))

    def taken_again(self, *, ledger: bool) -> int:
        """How many deliveries its own failures may have caused: what it took and failed then is sent again.

        Without a ledger, so is what the first flow took when the second refused.
        """
        second = [] if ledger else [name for name in lines(self._refused) if not name.endswith(FIRST_FLOW)]
        return len(lines(self._late)) + len(second)


def fault_of(message_id: str, content: Any) -> str:
    """What is wrong with a message that came under this id; nothing when it is what was stored."""
    number = content.get("number") if isinstance(content, dict) else None
    if not isinstance(number, int):
        return " with a content that nobody stored"
    if message_id != id_of(number):
        return f" with the content of {id_of(number)}"
    return "" if content == content_of(number) else " with a changed content"


def _no_room() -> None:
    with open("/dev/full", "wb", buffering=0) as full:  # noqa: PTH123
        full.write(b"x")


def _no_answer() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(0.01)
        ours.recv(1)


def _no_memory() -> None:
    bytearray(1 << 62)


# Real ones, of the system and the interpreter.
_ERRORS: dict[str, Callable[[], None]] = {OS_ERROR: _no_room, TIMEOUT: _no_answer, MEMORY: _no_memory}
