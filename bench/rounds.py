"""Rounds: cases take turns, so that a noisy machine is noisy for all of them, and ratios are taken within a round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bench.figures import Row
from bench.progress import elapsed, say

#: Seconds between two words about how far it is.
_EVERY = 5.0


@dataclass
class Case:
    """One way to do something; `run` does it once and returns the seconds it took, by whatever unit all of them use."""

    name: str
    run: Callable[[], float]
    seconds: list[float] = field(default_factory=list)
    error: str = ""


@dataclass(frozen=True)
class Comparison:
    """A row to be: what was done, ours and theirs. `bar` is the most that the ratio may be."""

    what: str
    ours: Case
    to: str
    theirs: Case
    bar: float | None = None


def take_turns(cases: Sequence[Case], rounds: int, *, warm_up: bool = True) -> None:
    """Runs every case once a round, there and back. A case that fails is left out from then on, with its error."""
    said = elapsed()
    for number in range(-1 if warm_up else 0, rounds):
        if elapsed() > said + _EVERY:
            said = elapsed()
            say(f"round {number + 1} of {rounds}")
        for case in cases if number % 2 else cases[::-1]:
            if case.error:
                continue
            try:
                seconds = case.run()
            except Exception as error:  # noqa: BLE001 - it goes into the table
                case.error = f"{type(error).__name__}: {error}"
                say(f"{case.name} failed: {case.error}")
            else:
                if number >= 0:
                    case.seconds.append(seconds)


def rows(part: str, comparisons: Sequence[Comparison]) -> list[Row]:
    return [
        Row(
            part,
            each.what,
            each.to,
            bar=each.bar,
            ours=each.ours.seconds,
            theirs=each.theirs.seconds,
            error=each.ours.error or each.theirs.error,
        )
        for each in comparisons
    ]
