"""Processes and their threads as greenlets that take turns at fixed points; what the turn brings is for others to say.

A process that is killed is never given another turn: no `finally` of its runs before the schedule has ended, as under
SIGKILL. Time is virtual and passes with every turn, and when all wait.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from greenlet import GreenletExit, getcurrent, greenlet

NANOSECONDS = 1_000_000_000
START = 1_700_000_000 * NANOSECONDS
#: What one turn takes, in nanoseconds.
TURN = 10_000_000
_WAKES_UP = 0.02

GO, KILL, STALL = "go", "KILL", "STALL"

#: Decides what happens to a process whose turn it is, at the point it has come to.
Decide = Callable[["Process", str], str]


class Gone(GreenletExit):
    """The end of a strand whose process was killed. Raised only when the schedule is over, to take it away."""


class StuckError(Exception):
    """All that is left waits for something that nobody will do."""


class Clock:
    """Nanoseconds since 1970, for all processes and databases."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> int:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += int(seconds * NANOSECONDS)


class Process:
    """One process: strands of work that live and die together. `about` is whatever its owner wants to know of it."""

    def __init__(self, name: str, about: Any = None) -> None:
        self.name = name
        self.about = about
        self.alive = True
        self.killed = False
        self.stalled = False
        self.strands: list[Strand] = []
        #: Those it has started, which do not outlive it.
        self.children: list[Process] = []


class Strand:
    """One thread of a process. It is at a point, or waits until something is so or a time has come."""

    def __init__(self, process: Process, work: Callable[[], Any], parent: greenlet) -> None:
        self.process = process
        self.let = greenlet(self._run, parent)
        self._work = work
        self.at: str | None = None
        self.ready: Callable[[], bool] | None = None
        self.until: int | None = None
        self.ended = False
        self.result: Any = None
        self.error: BaseException | None = None

    def _run(self) -> None:
        try:
            self.result = self._work()
        except BaseException as error:  # noqa: BLE001 - told to whoever waits for it
            self.error = error
        finally:
            self.ended = True

    def able(self, now: int) -> bool:
        if self.ready is None and self.until is None:
            return True
        return (self.until is not None and self.until <= now) or (self.ready is not None and self.ready())


class Hub:
    """Gives turns until no strand is left."""

    def __init__(self, clock: Clock, rng: random.Random, decide: Decide, ended: Callable[[Process], None]) -> None:
        self.clock, self.rng = clock, rng
        self._decide, self._ended = decide, ended
        self._strands: list[Strand] = []
        self._corpses: list[Strand] = []
        self._main = getcurrent()
        self.current: Strand | None = None
        self.trace: list[str] = []

    # -- for whoever runs processes ----------------------------------------------------------------------------

    def start(self, process: Process, work: Callable[[], Any]) -> Strand:
        strand = Strand(process, work, self._main)
        process.strands.append(strand)
        self._strands.append(strand)
        return strand

    @property
    def processes(self) -> int:
        """How many there are now."""
        return len({strand.process for strand in self._strands})

    def kill(self, process: Process) -> None:
        """Ends a process as SIGKILL does. One that kills itself does not come back from this call."""
        process.killed = True
        self._bury(process)
        if self.current is not None and self.current.process is process:
            self._main.switch()

    def run(self) -> None:
        """Until every process has come to its end. Raises StuckError when none ever will."""
        while self._strands:
            strand = self._next()
            if strand.at is not None:
                decision = self._decide(strand.process, strand.at)
                if decision == KILL:
                    self.kill(strand.process)
                    self._ended(strand.process)
                    continue
                if decision == STALL:
                    continue
                self._resume(strand, decision)
            else:
                self._resume(strand, None)

    def clean_up(self) -> None:
        """Takes the strands of killed processes away."""
        for strand in self._corpses:
            if strand.let:
                self.current = strand
                strand.let.throw(Gone)
        self._corpses, self.current = [], None

    # -- for what runs in a process ----------------------------------------------------------------------------

    def pause(self, what: str) -> str:
        """Everybody else may come first. What is decided about the caller then."""
        strand = self._mine()
        if len(self._strands) == 1:  # nobody else is there: without the way through the others
            self.clock.now += TURN
            self.trace.append(f"{strand.process.name} -> {what}")
            decision = self._decide(strand.process, what)
            if decision == GO:
                return GO
            strand.at = what
            return str(self._main.switch(decision))
        strand.at = what
        return str(self._main.switch(None))

    def wait(self, until: int | None, ready: Callable[[], bool] | None) -> None:
        """Until something is so, or that time has come."""
        strand = self._mine()
        strand.at, strand.until, strand.ready = None, until, ready
        self._main.switch(None)

    def _mine(self) -> Strand:
        strand = self.current
        assert strand is not None
        if not strand.process.alive:
            raise Gone
        return strand

    # -- turns -------------------------------------------------------------------------------------------------

    def _next(self) -> Strand:
        while True:
            self.clock.now += TURN
            stalled = [one.process for one in self._strands if one.process.stalled]
            if stalled and self.rng.random() < _WAKES_UP:
                stalled[0].stalled = False
            awake = [one for one in self._strands if not one.process.stalled]
            able = [one for one in awake if one.able(self.clock.now)]
            if able:
                return able[0] if len(able) == 1 else self.rng.choice(able)
            times = [one.until for one in awake if one.until is not None]
            if stalled:
                self.rng.choice(stalled).stalled = False
            elif times:
                self.clock.now = max(self.clock.now, min(times))
            else:
                raise StuckError(", ".join(one.process.name for one in self._strands))

    def _resume(self, strand: Strand, decision: str | None) -> None:
        strand.at = strand.until = strand.ready = None
        before, self.current = self.current, strand
        answer = strand.let.switch(decision) if strand.let else strand.let.switch()
        self.current = before
        if strand.ended:
            self._strands = [one for one in self._strands if one is not strand]
            if strand is strand.process.strands[0]:
                self._end_of(strand)
        elif not strand.process.alive:
            self._ended(strand.process)
        elif answer is not None:
            self._carry_out(strand, str(answer))
        elif strand.at is not None:
            self.trace.append(f"{strand.process.name} -> {strand.at}")

    def _carry_out(self, strand: Strand, decision: str) -> None:
        """What was decided on the short way through `pause`."""
        if decision == KILL:
            self.kill(strand.process)
            self._ended(strand.process)
        elif decision != STALL:
            self._resume(strand, decision)

    def _end_of(self, strand: Strand) -> None:
        """The main thread has ended: daemons end with it."""
        self._bury(strand.process)
        self._ended(strand.process)

    def _bury(self, process: Process) -> None:
        process.alive = False
        for child in process.children:
            if child.alive:
                child.killed = True
                self._bury(child)
        self._corpses += [strand for strand in process.strands if not strand.ended]
        self._strands = [strand for strand in self._strands if strand.process is not process]
