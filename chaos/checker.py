"""The checker, in the manner of Jepsen's total-queue: every accepted message comes out, and nothing else does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Report:
    """What became of the messages of one run. A message is delivered when every flow has it.

    `both` were delivered and are dead letters as well: nothing is lost, and somebody looks at one dead letter too many.
    It takes a fault between a delivery, or the copy of a dead letter, and the acknowledgement. `stuck` are still in
    their store, although nobody disturbs those who work on it any more.
    """

    accepted: int
    delivered: int
    dead_with_reason: int
    both: int
    lost: tuple[str, ...]
    unexpected: tuple[str, ...]
    dead_without_reason: tuple[str, ...]
    duplicated: int
    duplicates_allowed: int
    stuck: int

    @property
    def good(self) -> bool:
        wrong = self.lost or self.unexpected or self.dead_without_reason or self.stuck
        return not wrong and self.accepted > 0 and self.duplicated <= self.duplicates_allowed


def check(
    *,
    attempted: Collection[str],
    accepted: Collection[str],
    delivered: Mapping[str, int],
    dead: Mapping[str, str | None],
    flows: Collection[str],
    duplicates_allowed: int,
    stuck: int,
) -> Report:
    """`delivered` counts "<id> <flow>"; `dead` maps ids to reasons."""
    complete = {one for one in attempted if all(f"{one} {flow}" in delivered for flow in flows)}
    known = set(attempted)
    return Report(
        accepted=len(set(accepted)),
        delivered=len(complete & set(accepted)),
        dead_with_reason=sum(1 for reason in dead.values() if reason),
        both=len(complete & dead.keys()),
        lost=tuple(sorted(set(accepted) - complete - dead.keys())),
        unexpected=tuple(sorted({name for name in delivered if name.partition(" ")[0] not in known})),
        dead_without_reason=tuple(sorted(one for one, reason in dead.items() if not reason)),
        duplicated=sum(Counter(delivered).values()) - len(delivered),
        duplicates_allowed=duplicates_allowed,
        stuck=stuck,
    )


def table(reports: Mapping[str, Report]) -> str:
    """The reports side by side, and the verdict."""
    heads = ("accepted", "delivered", "dead", "both", "lost", "stuck", "twice", "(at most)", "unexpected", "no reason")
    rows = [f"{'':18}" + "".join(f"{head:>11}" for head in heads)]
    for name, report in reports.items():
        figures = (
            report.accepted, report.delivered, report.dead_with_reason, report.both, len(report.lost), report.stuck,
            report.duplicated, report.duplicates_allowed, len(report.unexpected), len(report.dead_without_reason),
        )  # fmt: skip
        rows.append(f"{name:18}" + "".join(f"{figure:>11}" for figure in figures))
        if report.lost:
            rows.append(f"  LOST: {', '.join(report.lost[:20])}")
    rows.append("Nothing was lost." if all(report.good for report in reports.values()) else "NOT GOOD.")
    return "\n".join(rows)
