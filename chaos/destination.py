"""The destination of a chaos run: a file that keeps score, and a mode that the nemesis sets."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from pathlib import Path

UP, DOWN, SLOW, LATE = "up", "down", "slow", "late"
MODES = (DOWN, SLOW, LATE)
FLOWS = (FIRST_FLOW, _) = ("lake", "crm")


class DestinationError(Exception):
    """The destination did not say yes."""


class Destination:
    """Takes messages by name. One write per line: processes that die leave whole lines only."""

    def __init__(self, folder: Path) -> None:
        self._delivered, self._late, self._mode = folder / "delivered", folder / "late", folder / "mode"

    def set_mode(self, mode: str) -> None:
        new = self._mode.with_suffix(".new")
        new.write_text(mode)
        new.replace(self._mode)

    def take(self, name: str, number: int) -> None:
        """Takes the message of this number; raises for what is poison, now and then for what is shaky, and by mode."""
        mode = self._mode.read_text() if self._mode.exists() else UP
        shaky = is_shaky(number) and name.endswith(FIRST_FLOW) and random.random() < 1 / 2  # noqa: S311
        if mode == DOWN or is_poison(number) or shaky:
            raise DestinationError(f"{name} is not taken")
        if mode == SLOW:
            time.sleep(0.2)
        append(self._delivered, name)
        if mode == LATE:
            append(self._late, name)
            raise DestinationError(f"{name} was taken, and then something broke")

    def delivered(self) -> Counter[str]:
        return Counter(lines(self._delivered))

    def failed_late(self) -> int:
        return len(lines(self._late))


def is_poison(number: int) -> bool:
    return number % 20 == 3  # noqa: PLR2004


def is_shaky(number: int) -> bool:
    return number % 20 == 7  # noqa: PLR2004


def append(path: Path, line: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, f"{line}\n".encode())
    finally:
        os.close(descriptor)


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []
