"""What may happen in a schedule, and how often: what befalls processes, what people do, and what is the case at all."""

from __future__ import annotations

from dataclasses import dataclass

from tests.simulation.databases import ANSWER_LOST, AWAY, NO_MEMORY
from tests.simulation.files import NO_FILES
from tests.simulation.hub import KILL, STALL
from tests.simulation.world import OUT_OF_MEMORY, TIMEOUT

JUMP, ABANDON = "JUMP", "ABANDON"
FAULTS = {
    KILL: 6, STALL: 4, AWAY: 3, ANSWER_LOST: 3, JUMP: 2, ABANDON: 1, NO_MEMORY: 1, OUT_OF_MEMORY: 10, TIMEOUT: 10,
    NO_FILES: 16,
}  # fmt: skip
TOPOLOGIES = {("orders",): 6, ("orders", "refunds"): 1, ("orders", "twin"): 1}
ACTS = {
    "resend": 4, "purge": 3, "deploy": 2, "clear": 2, "dead letters away": 1, "store away": 1, "forge": 1, "sweep": 1,
    "another run": 1, "no files": 1, "no memory": 1, "timeouts": 1,
}  # fmt: skip
#: For a while each process that comes to such a step meets this, so many times out of a hundred.
LASTING = {"no files": (NO_FILES, 100), "no memory": (NO_MEMORY, 30), "timeouts": (TIMEOUT, 100)}


@dataclass(frozen=True)
class Shape:
    """What all schedules of a kind have in common; what is not said is drawn."""

    how: str | None = None
    size: int | None = None
    slow: bool = False
    takes_in: bool = False
    hammered: bool = False
    on_frames: str | None = None
    #: What run after run is to meet.
    weather: str | None = None
    #: The only fault there is.
    fault: str | None = None
    #: How the steps begin at which it happens.
    at: str = ""


ANY = Shape()
