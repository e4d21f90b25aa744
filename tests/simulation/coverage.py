"""What has happened in some schedules: they show nothing about what never did."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tests.simulation.harms import FAULTS, LASTING
from tests.simulation.schedule import Schedule
from tests.simulation.world import CHANGES

#: What must have happened among some hundred schedules.
KINDS = {
    *FAULTS, *(f"for a while: {name}" for name in LASTING), *(f"chain changed: {name}" for name in CHANGES),
    "DataFrame handlers between others", "a DataFrame delivered", "a chain with DataFrames", "a lost lease noticed",
    "a message kills", "a message that its store gave up was finished", "a part of a plan tried again",
    "a slow destination", "an executor died, and its driver did not", "an id came again", "as large as can be",
    "away: dead letters", "away: store", "cleared", "dropped by rule", "forged record", "left behind, and swept up",
    "purged", "replayed", "replayed from the dead letters", "taken in", "too large, and refused",
    "two databases, one store name", "two pipelines, one dead-letter store", "two tries at once",
}  # fmt: skip


@dataclass
class Coverage:
    """In how many schedules each thing happened."""

    schedules: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(KINDS, 0)))

    def note(self, schedule: Schedule) -> None:
        self.schedules.update(what for what, times in schedule.seen.items() if times)

    def missing(self) -> list[str]:
        return sorted(what for what, number in self.schedules.items() if not number)

    def __str__(self) -> str:
        return "".join(f"{number:8} schedules saw: {what}\n" for what, number in sorted(self.schedules.items()))
