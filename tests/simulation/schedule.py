"""One schedule: processes that take turns between any two store calls, and what the seed does to them meanwhile."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from greenlet import getcurrent, greenlet

from homing.errors import LeaseLostError, StoreUnavailableError
from tests.simulation.processes import TASK_ERRORS, Process
from tests.simulation.world import CHUNK, FLOWS, Killed, Plan, World

GO, KILL, AWAY, ANSWER_LOST, STALL = "go", "KILL", "AWAY", "ANSWER LOST", "STALL"
TRIES = 4
_WAKES_UP, _ALL_AT_FIRST = 0.02, 0.8
ROUNDS = 15  # in which everything must come to its end once nothing is disturbed any more
_STAGES: dict[str, tuple[tuple[str, ...], ...]] = {
    "produce": (("produce",),),
    "first": (("listen",), ("process",), tuple(f"deliver.{flow}" for flow in FLOWS), ("settle",)),
    "replay": (("replay",), ("settle_replay",)),
}


@dataclass
class Run:
    """A DAG run as Airflow would carry it: tasks in stages, each tried again, the last one run whatever happened."""

    run_id: str
    kind: str
    params: dict[str, Any] = field(default_factory=dict)
    stage: int = 0
    tries: dict[str, int] = field(default_factory=dict)
    failed: bool = False

    @property
    def stages(self) -> tuple[tuple[str, ...], ...]:
        return _STAGES[self.kind]


@dataclass(eq=False)
class Actor:
    """A process at work on one task of one run. `current`: Airflow still waits for it."""

    name: str
    run: Run
    task: str
    let: greenlet
    current: bool = True
    stalled: bool = False


class Schedule:
    """Everything that happens under one seed. With `crash_at`, only whoever makes that store call is killed."""

    def __init__(self, world: World, seed: int, *, crash_at: int | None = None) -> None:
        self.world, self.rng, self.crash_at = world, random.Random(seed), crash_at  # noqa: S311
        self.trace: list[str] = []
        self.calls = self.faults = self._numbers = 0
        self.budget = self.rng.choice([0, 1, 1, 2, 3, 5]) if crash_at is None else 0
        self.rate = self.rng.choice([0.01, 0.02, 0.05])
        self.actors: list[Actor] = []
        self.lost: list[str] = []

    def run(self) -> list[str]:
        """Carries the schedule out; what the checker found, nothing if all is well."""
        world, rng = self.world, self.rng
        world.reset()
        count = rng.choice([1, 2, 4, 8])
        for number in range(count):
            world.plans[f"m{number}"] = Plan.draw(rng)
        self._begin(Run("producer", "produce", {"ids": list(world.plans)}))
        if rng.random() < _ALL_AT_FIRST:
            self._until_idle()
        for number in range(rng.choice([1, 1, 2])):
            self._begin(Run(f"run{number}", "first", {"limit": rng.choice([2, count])}))
        self._until_idle()
        self.budget, self.crash_at = 0, None
        for number in range(ROUNDS):
            if not any(world._waiting()[0]):
                break
            world.clock.advance(1000)
            self._begin(Run(f"later{number}", "first", {"limit": 100}))
            self._until_idle()
        return [*self.lost, *world.problems(self.faults)]

    # -- Airflow -----------------------------------------------------------------------------------------------

    def _begin(self, run: Run) -> None:
        if run.stage < len(run.stages):
            for task in run.stages[run.stage]:
                self._start(run, task)

    def _start(self, run: Run, task: str) -> None:
        run.tries[task] = run.tries.get(task, 0) + 1
        self._numbers += 1
        name = f"{self._numbers}:{run.run_id}.{task}#{run.tries[task]}"
        process = Process(self.world, run.run_id, self._interfere)
        self.actors.append(Actor(name, run, task, greenlet(lambda: self._body(process, run, task))))

    def _body(self, process: Process, run: Run, task: str) -> tuple[bool, Any]:
        work: dict[str, Callable[[], Any]] = {
            "produce": lambda: process.produce(run.params["ids"]),
            "listen": lambda: process.listen(run.params["limit"]),
            "process": process.process,
            "settle": process.settle,
            "replay": lambda: process.replay(run.params["batch"], run.params["ids"]),
            "settle_replay": process.settle_replay,
        }
        try:
            if task.startswith("deliver."):
                return True, process.deliver(task.partition(".")[2])
            return True, work[task]()
        except (Killed, *TASK_ERRORS) as error:
            return False, error

    def _ended(self, actor: Actor, good: bool, answer: Any) -> None:
        self.trace.append(f"{actor.name} ended: {answer if good else type(answer).__name__}")
        if isinstance(answer, Killed | LeaseLostError):
            self.world.allowed_duplicates += CHUNK  # what it had delivered and not yet noted
        if isinstance(answer, Killed):
            self.lost += [
                f"lost at once: {one}" for one in self.world.lost() if f"lost at once: {one}" not in self.lost
            ]
        if not actor.current:
            return
        run, task = actor.run, actor.task
        if not good and run.tries[task] < TRIES:
            self._start(run, task)
            return
        run.failed = run.failed or not good
        if task == "settle" and good and (answer["failed"] or answer["stranded"]):
            self._begin(Run(f"{run.run_id}.replay", "replay", {"batch": run.run_id, "ids": answer["stranded"]}))
        if not any(other.current for other in self.actors if other.run is run):
            run.stage = len(run.stages) - 1 if run.failed and run.stage < len(run.stages) - 1 else run.stage + 1
            self._begin(run)

    # -- turns -------------------------------------------------------------------------------------------------

    def _until_idle(self) -> None:
        while self.actors:
            awake = [one for one in self.actors if not one.stalled]
            actor = self.rng.choice(awake if awake and self.rng.random() > _WAKES_UP else self.actors)
            actor.stalled = False
            decision = self._decide(actor) if actor.let else GO
            if decision != STALL:
                self._resume(actor, decision)

    def _resume(self, actor: Actor, decision: str) -> None:
        answer = actor.let.switch(decision) if actor.let else actor.let.switch()
        if actor.let.dead:
            self.actors.remove(actor)
            self._ended(actor, *answer)
        else:
            actor_next = str(answer)
            self.trace.append(f"{actor.name} -> {actor_next}")

    def _interfere(self, who: str, now: Callable[[], Any]) -> Any:
        """In the process, before a call: everybody else may come first, and the worst may happen."""
        decision = getcurrent().parent.switch(who)
        if who.startswith("send ") and decision in (AWAY, ANSWER_LOST):
            decision = GO
        if decision == KILL:
            raise Killed
        if decision == AWAY:
            raise StoreUnavailableError("away")
        result = now()
        if decision == ANSWER_LOST:
            raise StoreUnavailableError("the answer was lost")
        return result

    def _decide(self, actor: Actor) -> str:
        """What happens to this process at its next call, and to the clock before it."""
        self.calls += 1
        if self.calls == self.crash_at:
            return self._fault(actor, KILL)
        if self.budget <= 0 or self.rng.random() >= self.rate:
            return GO
        self.budget -= 1
        fault = self.rng.choice([KILL, KILL, AWAY, ANSWER_LOST, STALL, STALL, "JUMP"])
        if fault == "JUMP":
            seconds = self.rng.choice([200, 400, 700])
            self.trace.append(f"the clock jumps by {seconds} s")
            self.faults += 1
            self.world.clock.advance(seconds)
            self.world.allowed_duplicates += CHUNK * len(self.actors)
            return GO
        return self._fault(actor, fault)

    def _fault(self, actor: Actor, fault: str) -> str:
        self.faults += 1
        if fault != KILL:
            self.world.allowed_duplicates += CHUNK
        self.trace.append(f"{actor.name}: {fault}")
        if fault == STALL:
            # Stopped long enough for Airflow to believe it dead and start another; it will wake up some time.
            actor.stalled = True
            if actor.current and actor.run.tries[actor.task] < TRIES:
                actor.current = False
                self._start(actor.run, actor.task)
        return fault
