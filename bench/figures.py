"""The table: rows of ratios, as text and as JSON.

Every ratio is time, ours to theirs, for the same work in the same round: below 1, Homing is faster. A bar is the most
that a ratio may be.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

WITHIN, ABOVE, FAILED = "within", "ABOVE", "FAILED"
_HEADER = ("part", "what", "compared with", "ratio", "range", "rounds", "ours", "theirs", "bar", "")


@dataclass(frozen=True)
class Row:
    """One comparison. `ours` and `theirs` are seconds, round by round, for the same amount of work.

    `error` says why there are no figures, or why those there are must not be trusted.
    """

    part: str
    what: str
    to: str
    bar: float | None = None
    ours: Sequence[float] = field(default_factory=list)
    theirs: Sequence[float] = field(default_factory=list)
    error: str = ""

    @property
    def ratios(self) -> list[float]:
        return [] if self.error else [ours / theirs for ours, theirs in zip(self.ours, self.theirs, strict=True)]

    @property
    def median(self) -> float:
        return statistics.median(self.ratios)

    @property
    def verdict(self) -> str:
        """Whether the bar is kept; empty where there is none."""
        if not self.ratios:
            return FAILED
        if self.bar is None:
            return ""
        return WITHIN if self.median <= self.bar else ABOVE

    def figures(self) -> dict[str, Any]:
        """For a program to read."""
        known: dict[str, Any] = {"part": self.part, "what": self.what, "to": self.to, "bar": self.bar}
        if not self.ratios:
            return {**known, "verdict": FAILED, "error": self.error or "no round came to its end"}
        return {
            **known,
            "verdict": self.verdict,
            "median": self.median,
            "least": min(self.ratios),
            "most": max(self.ratios),
            "rounds": len(self.ratios),
            "ours_seconds": statistics.median(self.ours),
            "theirs_seconds": statistics.median(self.theirs),
        }


def table(rows: Sequence[Row]) -> str:
    """One table in Markdown, its columns aligned."""
    lines = [list(_HEADER), *(_cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(_HEADER))]
    rule = ["-" * width for width in widths]
    return "\n".join(
        "| " + " | ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)) + " |"
        for line in [lines[0], rule, *lines[1:]]
    )


def summary(rows: Sequence[Row]) -> str:
    """One sentence that says what to look at."""
    barred = [row for row in rows if row.bar is not None and row.verdict != FAILED]
    failed = [row for row in rows if row.verdict == FAILED]
    above = [row for row in barred if row.verdict == ABOVE]
    text = f"{len(rows)} rows; {len(barred) - len(above)} of {len(barred)} bars kept"
    return text + (f"; {len(failed)} FAILED" if failed else "")


def _cells(row: Row) -> list[str]:
    bar = "" if row.bar is None else f"≤ {row.bar:.2f}"
    if row.verdict == FAILED:
        why = " ".join((row.error or "no round came to its end").split())
        return [row.part, row.what, row.to, "", "", "0", "", "", bar, f"{FAILED}: {why[:160]}"]
    spread = f"{_short(min(row.ratios))} – {_short(max(row.ratios))}"
    ours, theirs = (_duration(statistics.median(seconds)) for seconds in (row.ours, row.theirs))
    return [
        row.part, row.what, row.to, _short(row.median), spread, str(len(row.ratios)), ours, theirs, bar, row.verdict
    ]  # fmt: skip


def _short(ratio: float) -> str:
    """Two digits that say something, whatever the size."""
    return f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:.2g}"  # noqa: PLR2004


def _duration(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} µs"
