"""The checker, in the manner of Jepsen's total-queue: every accepted message comes out, and nothing else does.

A dead letter is believed only for what happened to that very message.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from chaos.inspection import Letter
from chaos.story import Story
from homing.failure import WORKER_CRASH
from homing.store import CRASHED
from homing.stores.sql.properties import SqlProperties

#: So often a store hands a message out whose consumers die, unless it is told otherwise: and nobody tells it here.
MAX_DELIVERIES = SqlProperties.max_deliveries
# What the destination and the machine answer to a handler.
_FAILURES = ("DestinationError", "OSError", "TimeoutError", "MemoryError")


@dataclass(frozen=True)
class Report:
    """What became of the messages of one run. A message is delivered when every flow has it.

    `both` were delivered or dropped and are dead letters as well: nothing is lost, and somebody looks at one dead
    letter too many. It takes a fault between a delivery, or the copy of a dead letter, and the acknowledgement, so it
    is bounded as duplicates are. `stuck` are still in their store, although nobody disturbs those who work on it any
    more. `false` are dead letters that the message's own story does not explain. `harms` says how often each was done,
    and `missed` how often each was tried and hit nobody. `error` is what kept the run from being counted.
    """

    accepted: int = 0
    delivered: int = 0
    dropped: int = 0
    dead: int = 0
    both: int = 0
    lost: tuple[str, ...] = ()
    stuck: tuple[str, ...] = ()
    duplicated: int = 0
    duplicates_allowed: int = 0
    unexpected: tuple[str, ...] = ()
    false: tuple[str, ...] = ()
    harms: Mapping[str, int] = field(default_factory=dict)
    missed: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    error: str = ""

    @property
    def not_done(self) -> list[str]:
        return [
            f"{name} (tried {self.missed[name]} times)" if self.missed.get(name) else name
            for name, times in self.harms.items()
            if not times
        ]

    @property
    def good(self) -> bool:
        wrong = self.error or self.lost or self.stuck or self.unexpected or self.false or self.not_done
        return (
            not wrong
            and self.accepted > 0
            and self.delivered > 0
            and max(self.duplicated, self.both) <= self.duplicates_allowed
        )


def check(
    *,
    attempted: Collection[str],
    accepted: Collection[str],
    story: Story,
    delivered: Counter[str],
    letters: Sequence[Letter],
    flows: Collection[str],
    listens: bool,
    tries: int,
    duplicates_allowed: int,
    stuck: Collection[str],
    harms: Mapping[str, int],
    missed: Mapping[str, int],
    seconds: float = 0.0,
) -> Report:
    """`delivered` counts "<id> <flow>"; see Report and Traits for the others."""
    sent, came, gone = set(attempted), set(accepted), story.dropped()
    dead = {letter.message_id for letter in letters}
    complete = {one for one in sent if all(f"{one} {flow}" in delivered for flow in flows)}
    right = {f"{one} {flow}" for one in sent - gone for flow in flows}
    strange = [f"the dead letter {one.message_id}{one.fault}" for one in letters if one.fault]
    judge = Judge(story, listens, tries)
    untold = [f"{letter.message_id}: {why}" for letter in letters if (why := judge.objection(letter))]
    missing = tuple(sorted(came - complete - gone - dead - set(stuck)))
    return Report(
        accepted=len(came),
        delivered=len(complete & came),
        dropped=len(gone & came),
        dead=len(dead),
        both=len((complete | gone) & dead),
        lost=missing[sum(1 for one in stuck if one not in sent) :],  # of what is at a broker only the number is known
        stuck=tuple(sorted(stuck)),
        duplicated=delivered.total() - len(delivered),
        duplicates_allowed=duplicates_allowed,
        unexpected=tuple(sorted((delivered.keys() - right) | (dead - sent) | (gone - sent)) + strange),
        false=tuple(sorted(untold)),
        harms=harms,
        missed=missed,
        seconds=seconds,
    )


@dataclass(frozen=True)
class Judge:
    """Says of a dead letter whether the story of its very message explains it. See Traits for `listens` and `tries`."""

    story: Story
    listens: bool
    tries: int

    def objection(self, letter: Letter) -> str:
        """Why it should be no dead letter; nothing when it should."""
        if not letter.reason:
            return "it has no reason"
        errors = letter.errors or {"": letter.reason}
        faults = [self._objection(letter.message_id, flow, kind) for flow, kind in errors.items()]
        told = "; ".join(filter(None, faults))
        return f"{told} [{self.story.told(letter.message_id)}]" if told else ""

    def _objection(self, message_id: str, flow: str, kind: str) -> str:
        kind = kind if kind == WORKER_CRASH else kind.rpartition(".")[2]
        failed, interrupted = self.story.failures(message_id, flow or None), self.story.interrupted(message_id)
        failures = failed.total()
        told = f"{kind} at {flow or 'a flow'}, failed {failures} times, interrupted in hand {interrupted} times"
        if kind in _FAILURES:
            # A listener that died has forgotten its attempts, and begins anew. A pipeline counts the passes of a
            # message, of which one may end with a death, or never come to this destination.
            enough = failures if self.listens else self.story.failed_passes(message_id) + interrupted
            return "" if failed[kind] and enough >= self.tries else told
        if kind == WORKER_CRASH:
            return "" if interrupted and failures + interrupted >= self.tries else told
        if kind == CRASHED:
            return "" if interrupted >= MAX_DELIVERIES else told
        return f"{kind}, for which there is no reason"


def table(reports: Mapping[str, Report]) -> str:
    """The reports side by side, and the verdict."""
    heads = (
        "accepted", "delivered", "dropped", "dead", "both", "lost", "stuck", "twice", "(at most)", "unexpected",
        "false", "harms", "not done", "seconds",
    )  # fmt: skip
    rows = [f"{'':20}" + "".join(f"{head:>11}" for head in heads)]
    for name, report in reports.items():
        figures = (
            report.accepted, report.delivered, report.dropped, report.dead, report.both, len(report.lost),
            len(report.stuck), report.duplicated, report.duplicates_allowed, len(report.unexpected), len(report.false),
            sum(1 for times in report.harms.values() if times), len(report.not_done), round(report.seconds),
        )  # fmt: skip
        rows.append(f"{name:20}" + "".join(f"{figure:>11}" for figure in figures))
        rows += _remarks(report)
    good = all(report.good for report in reports.values())
    rows.append("Nothing was lost, and every harm was done." if good else "NOT GOOD.")
    return "\n".join(rows)


def _remarks(report: Report) -> list[str]:
    told = {
        "done": [f"{name} {times}" for name, times in report.harms.items() if times],
        "NOT DONE": report.not_done,
        "LOST": report.lost[:20],
        "STUCK": report.stuck[:20],
        "UNEXPECTED": report.unexpected[:20],
        "FALSE DEAD LETTERS": report.false[:20],
        "FAILED": [report.error] if report.error else [],
    }
    return [f"  {what}: {', '.join(names)}" for what, names in told.items() if names]
