"""The destination of a chaos run: files that keep score, and a mode that the nemesis sets."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from pathlib import Path

UP, DOWN, SLOW, LATE = "up", "down", "slow", "late"
MODES = (DOWN, SLOW, LATE)
_JUST_NOW = 0.5
FLOWS = (FIRST_FLOW, _) = ("lake", "crm")


class DestinationError(Exception):
    """The destination did not say yes."""


class Destination:
    """Takes messages. One write per line: processes that die leave whole lines only."""

    def __init__(self, folder: Path) -> None:
        self._delivered, self._late, self._mode = folder / "delivered", folder / "late", folder / "mode"
        self._refused, self._dropped, self._seed = folder / "refused", folder / "dropped", folder / "seed"

    def set_seed(self, seed: str) -> None:
        """What is shaky is refused as this says, in every process."""
        self._seed.write_text(seed)

    def set_mode(self, mode: str) -> None:
        new = self._mode.with_suffix(".new")
        new.write_text(mode)
        new.replace(self._mode)

    def drops(self, message_id: str, number: int) -> bool:
        """The author's rule: whether nobody wants the message of this number."""
        if is_unwanted(number):
            append(self._dropped, message_id)
        return is_unwanted(number)

    def take(self, message_id: str, flow: str, number: int) -> None:
        """Takes the message of this number; raises for what is poison, now and then for what is shaky, and by mode."""
        mode = self._mode.read_text() if self._mode.exists() else UP
        name = f"{message_id} {flow}"
        if mode == DOWN or is_poison(number) or (is_shaky(number) and flow == FIRST_FLOW and self._shakes(name)):
            append(self._refused, name)
            raise DestinationError(f"{name} is not taken")
        if mode == SLOW:
            time.sleep(0.2)
        append(self._delivered, name if message_id == f"m{number}" else f"{name} with the content of m{number}")
        if mode == LATE:
            append(self._refused, name)
            append(self._late, name)
            raise DestinationError(f"{name} was taken, and then something broke")

    def _shakes(self, name: str) -> bool:
        refusals = lines(self._refused).count(name)
        return random.Random(f"{self._seed.read_text()} {name} {refusals}").random() < 1 / 2  # noqa: S311

    def is_busy(self) -> bool:
        """Whether it was asked to take something just now."""
        asked = [path.stat().st_mtime for path in (self._delivered, self._refused) if path.exists()]
        return time.time() - max(asked, default=0) < _JUST_NOW

    def delivered(self) -> Counter[str]:
        return Counter(lines(self._delivered))

    def dropped(self) -> set[str]:
        return set(lines(self._dropped))

    def refused(self) -> set[str]:
        """The messages that were refused at least once, by any flow."""
        return {name.partition(" ")[0] for name in lines(self._refused)}

    def taken_again(self, *, ledger: bool) -> int:
        """How many deliveries its own failures may have caused: what it took and failed then is sent again.

        Without a ledger, so is what the first flow took when the second refused.
        """
        second = [] if ledger else [name for name in lines(self._refused) if not name.endswith(FIRST_FLOW)]
        return len(lines(self._late)) + len(second)


def is_poison(number: int) -> bool:
    return number % 20 == 3  # noqa: PLR2004


def is_shaky(number: int) -> bool:
    return number % 20 == 7  # noqa: PLR2004


def is_unwanted(number: int) -> bool:
    return number % 20 == 11  # noqa: PLR2004


def append(path: Path, line: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, f"{line}\n".encode())
    finally:
        os.close(descriptor)


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []
