"""The balance sheet: accepted = delivered + dropped + dead-lettered + still in the store + forgotten.

The left side is counted from the store alone. Each accepted message is then looked for on the right side. If one is
found in none of these places, it is unaccounted for, and the books do not balance.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice

from homing.delivery.status import find_outcome
from homing.delivery.stores import PipelineStores
from homing.failure import dead_letter_id
from homing.ledger import DELIVERED, DROPPED, SOURCE_FLOW, Entry, digest
from homing.message import ACKNOWLEDGED, MessageRef

_PAGE = 5_000
_NAMED = 20  # how many unaccounted ids are printed


@dataclass
class Totals:
    """How many messages were accepted, and what became of them: of all messages, of one destination or of one batch."""

    accepted: int = 0
    delivered: int = 0
    dropped: int = 0
    dead_lettered: int = 0
    waiting: int = 0
    #: Removed because a person asked for it.
    forgotten: int = 0
    unaccounted: int = 0
    duplicates: int = 0

    @property
    def balanced(self) -> bool:
        return self.accepted == self.delivered + self.dropped + self.dead_lettered + self.waiting + self.forgotten


@dataclass
class AuditReport:
    """The totals, and the ids of messages that are unaccounted for.

    Messages that no run has claimed yet are counted in the batch "".
    """

    total: Totals = field(default_factory=Totals)
    destinations: dict[str, Totals] = field(default_factory=dict)
    batches: dict[str, Totals] = field(default_factory=dict)
    unaccounted: list[str] = field(default_factory=list)
    #: When the oldest message that is still there was stored: older ones are purged, and counted on neither side.
    since: datetime | None = None

    @property
    def balanced(self) -> bool:
        return all(totals.balanced for totals in (self.total, *self.destinations.values(), *self.batches.values()))

    def __str__(self) -> str:
        names = f"{'':14}{'accepted':>10}{'delivered':>11}{'dropped':>9}{'dead':>7}{'waiting':>9}{'forgotten':>11}"
        lines = [f"{names}{'twice':>7}"]
        for name, totals in (("all", self.total), *self.destinations.items()):
            lines.append(
                f"{name:14}{totals.accepted:>10}{totals.delivered:>11}{totals.dropped:>9}"
                f"{totals.dead_lettered:>7}{totals.waiting:>9}{totals.forgotten:>11}{totals.duplicates:>7}"
            )
        if self.since is not None:
            lines.append(f"Counted since {self.since:%Y-%m-%d %H:%M:%S} UTC.")
        verdict = "The books balance." if self.balanced else f"UNACCOUNTED FOR: {', '.join(self.unaccounted[:_NAMED])}"
        return "\n".join([*lines, verdict])


def run_audit(stores: PipelineStores, flows: Sequence[str]) -> AuditReport:
    """Counts every message the store ever accepted (acknowledged ones for as long as they are kept)."""
    # Read in the direction messages travel: one that moves on meanwhile is then seen twice rather than not at all.
    oldest = stores.store.browse(1)
    states = iter(list(stores.store.view.states()))
    failed = _present(stores.failures.view.states())
    dead = _present(stores.dead_letters.view.states())
    # Last: erasure writes its tombstone before it removes anything.
    forgotten = {tombstone.digest for tombstone in stores.ledger.tombstones.all()}
    report = AuditReport(
        destinations={flow: Totals() for flow in flows}, since=oldest[0].enqueued_at if oldest else None
    )
    while page := list(islice(states, _PAGE)):
        ids = [message_id for message_id, _, _ in page]
        entries, batches = stores.ledger.known(ids), stores.store.view.batches_of(ids)
        for message_id, state, ref in page:
            found = entries.get(ref, {})
            letter = dead_letter_id(stores.store.name, ref.name)
            outcome = find_outcome(state, found, flows, failed=ref.name in failed, dead=letter in dead)
            outcome = "waiting" if outcome == "failed" else outcome
            if forgotten and digest(ref) in forgotten:
                forgotten.remove(digest(ref))
                # Of a message that a person had removed, something may be left: then it counts as what is left of it.
                outcome = "forgotten" if outcome == "unaccounted" else outcome
            _enter(report, message_id, found, outcome)
            batch = next((entry.batch_id for entry in found.values()), batches.get(message_id, ""))
            _add(report.batches.setdefault(batch, Totals()), outcome)
    for _ in forgotten:  # removed from the store, too, so it is not known in which batch they were
        _add(report.total, "forgotten")
    return report


def _present(states: Iterable[tuple[str, str, MessageRef]]) -> set[str]:
    return {message_id for message_id, state, _ in states if state != ACKNOWLEDGED}


def _enter(report: AuditReport, message_id: str, entries: dict[str, Entry], outcome: str) -> None:
    _add(report.total, outcome)
    report.total.duplicates += sum(_again(entry) for entry in entries.values())
    if outcome == "unaccounted":
        report.unaccounted.append(message_id)
    source = entries.get(SOURCE_FLOW)
    dropped = source is not None and source.state == DROPPED
    if dropped and outcome == "dropped":
        return  # it was never routed to any destination
    for flow, totals in report.destinations.items():
        entry = entries.get(flow)
        _add(totals, _flow_outcome(entry, "dropped" if dropped else outcome))
        totals.duplicates += 0 if entry is None else _again(entry)


def _flow_outcome(entry: Entry | None, outcome: str) -> str:
    if entry is not None and entry.done:
        return "delivered" if entry.state == DELIVERED else "dropped"
    return outcome if outcome in ("dead_lettered", "waiting", "dropped", "forgotten") else "unaccounted"


def _add(totals: Totals, outcome: str) -> None:
    totals.accepted += 1
    setattr(totals, outcome, getattr(totals, outcome) + 1)


def _again(entry: Entry) -> int:
    return max(0, entry.deliveries - 1)
