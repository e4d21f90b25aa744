"""The checker, in the manner of Jepsen's total-queue: every accepted message comes out, and nothing else does."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Report:
    """What became of the messages of one run. A message is delivered when every flow has it.

    `both` were delivered or dropped and are dead letters as well: nothing is lost, and somebody looks at one dead
    letter too many. It takes a fault between a delivery, or the copy of a dead letter, and the acknowledgement, so it
    is bounded as duplicates are. `stuck` are still in their store, although nobody disturbs those who work on it any
    more. `unexplained` are dead letters that no destination ever refused. `harms` says how often each was done; a
    `thorough` run is to do each. `error` is what kept the run from being counted.
    """

    accepted: int = 0
    delivered: int = 0
    dropped: int = 0
    dead_with_reason: int = 0
    both: int = 0
    lost: tuple[str, ...] = ()
    stuck: tuple[str, ...] = ()
    duplicated: int = 0
    duplicates_allowed: int = 0
    unexpected: tuple[str, ...] = ()
    unexplained: tuple[str, ...] = ()
    unexplained_allowed: int = 0
    dead_without_reason: tuple[str, ...] = ()
    harms: Mapping[str, int] = field(default_factory=dict)
    thorough: bool = False
    error: str = ""

    @property
    def never_done(self) -> list[str]:
        return [name for name, times in self.harms.items() if not times]

    @property
    def good(self) -> bool:
        wrong = self.error or self.lost or self.stuck or self.unexpected or self.dead_without_reason
        return (
            not wrong
            and self.accepted > 0
            and self.delivered > 0
            and max(self.duplicated, self.both) <= self.duplicates_allowed
            and len(self.unexplained) <= self.unexplained_allowed
            and not (self.thorough and self.never_done)
        )


def check(
    *,
    attempted: Collection[str],
    accepted: Collection[str],
    delivered: Mapping[str, int],
    dropped: Collection[str],
    refused: Collection[str],
    dead: Mapping[str, str | None],
    flows: Collection[str],
    duplicates_allowed: int,
    unexplained_allowed: int,
    stuck: Collection[str],
    harms: Mapping[str, int],
    thorough: bool,
) -> Report:
    """`delivered` counts "<id> <flow>"; `dead` maps ids to reasons; `refused` are ids that a destination refused."""
    sent, came, gone = set(attempted), set(accepted), set(dropped)
    complete = {one for one in sent if all(f"{one} {flow}" in delivered for flow in flows)}
    right = {f"{one} {flow}" for one in sent - gone for flow in flows}
    return Report(
        accepted=len(came),
        delivered=len(complete & came),
        dropped=len(gone & came),
        dead_with_reason=sum(1 for reason in dead.values() if reason),
        both=len((complete | gone) & dead.keys()),
        lost=tuple(sorted(came - complete - gone - dead.keys() - set(stuck))),
        stuck=tuple(sorted(stuck)),
        duplicated=sum(delivered.values()) - len(delivered),
        duplicates_allowed=duplicates_allowed,
        unexpected=tuple(sorted((delivered.keys() - right) | (dead.keys() - sent) | (gone - sent))),
        unexplained=tuple(sorted(dead.keys() - set(refused))),
        unexplained_allowed=unexplained_allowed,
        dead_without_reason=tuple(sorted(one for one, reason in dead.items() if not reason)),
        harms=harms,
        thorough=thorough,
    )


def table(reports: Mapping[str, Report]) -> str:
    """The reports side by side, and the verdict."""
    heads = (
        "accepted", "delivered", "dropped", "dead", "both", "lost", "stuck", "twice", "(at most)", "unexpected",
        "unexplained", "no reason",
    )  # fmt: skip
    rows = [f"{'':18}" + "".join(f"{head:>12}" for head in heads)]
    for name, report in reports.items():
        figures = (
            report.accepted, report.delivered, report.dropped, report.dead_with_reason, report.both, len(report.lost),
            len(report.stuck), report.duplicated, report.duplicates_allowed, len(report.unexpected),
            len(report.unexplained), len(report.dead_without_reason),
        )  # fmt: skip
        rows.append(f"{name:18}" + "".join(f"{figure:>12}" for figure in figures))
        rows += _remarks(report)
    rows.append("Nothing was lost." if all(report.good for report in reports.values()) else "NOT GOOD.")
    return "\n".join(rows)


def _remarks(report: Report) -> list[str]:
    told = {
        "done": [f"{name} {times}" for name, times in report.harms.items() if times],
        "NEVER DONE, and this run was to do all" if report.thorough else "never done": report.never_done,
        "LOST": report.lost[:20],
        "STUCK": report.stuck[:20],
        "UNEXPECTED": report.unexpected[:20],
        "never refused, and yet dead": report.unexplained[:20],
        "FAILED": [report.error] if report.error else [],
    }
    return [f"  {what}: {', '.join(names)}" for what, names in told.items() if names]
