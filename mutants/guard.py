"""A guard: a place in the code that keeps a message from being lost, and the test that knows it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


class StaleGuardError(Exception):
    """The code has changed, and the list of guards has not."""


@dataclass(frozen=True)
class Guard:
    """One edit that takes a guard out.

    `what` says what is kept. `old`, which `path` below plugins/homing holds exactly once, becomes `new`. Each of
    `tests` passes on the code as it is, and fails on what the edit makes of it.
    """

    what: str
    path: str
    old: str
    new: str
    tests: tuple[str, ...]

    @property
    def file(self) -> str:
        return f"plugins/homing/{self.path}"

    def removed_from(self, root: Path) -> str:
        """The text of the file without the guard; raises StaleGuardError when the edit does not fit."""
        text = (root / self.file).read_text(encoding="utf-8")
        found = text.count(self.old)
        if found != 1:
            raise StaleGuardError(f"{self.file} holds the text of this guard {found} times, not once: {self.old!r}")
        mutant = text.replace(self.old, self.new)
        try:
            compile(mutant, self.file, "exec")
        except SyntaxError as error:
            raise StaleGuardError(f"{self.file} is no Python without this guard: {error}") from error
        return mutant


def guard(what: str, path: str, old: str, new: str, *tests: str) -> Guard:
    """A guard as the lists write it down."""
    return Guard(what, path, old, new, tests)
