"""One schedule: what happens under one seed. Processes take turns at every durable step, and the world interferes."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from homing.errors import HomingError, LeaseLostError
from homing.failure import FAILURE_TYPE, build_record
from homing.message import Message
from homing.size_limit import DEFAULT_BYTES, weight
from tests.simulation.checker import Checker
from tests.simulation.databases import ANSWER_LOST, AWAY, NO_MEMORY
from tests.simulation.files import NO_FILES
from tests.simulation.frames import Executor, SparkError
from tests.simulation.harms import ABANDON, ACTS, ANY, FAULTS, JUMP, LASTING, TOPOLOGIES, Shape
from tests.simulation.hub import GO, KILL, STALL, Hub, Process, StuckError
from tests.simulation.plans import Plan, Told, draw
from tests.simulation.runs import ALONE, HERE, TRIES, Run, Task, first_pass, replay, replay_of
from tests.simulation.world import (
    BETWEEN,
    CHANGES,
    ON_FRAMES,
    OUT_OF_MEMORY,
    SHORT_LEASE,
    SLOW,
    TIMEOUT,
    Pipeline,
    TaskFailedError,
    TaskTimeout,
    World,
)

ROUNDS = 15  # in which everything must come to its end once nothing is disturbed any more
MOST_CALLS = 20_000
_ALONE = 0.25  # so many of the schedules run the applications that Spark would: they take twice as long
_ON_FRAMES = 0.1
_REPLAYED = 0.3
_SMALL_STORES = 0.1
#: `max_message_bytes` of small stores, and what of it a message has beside its text.
SMALL, _BESIDE = 2_000, 200
#: What ends a try of a task and no more.
_TASK_ERRORS = (HomingError, TaskFailedError, TaskTimeout, OSError, MemoryError, SparkError)


class Schedule:
    """With `crash_at`, only whoever comes to that step is killed."""

    def __init__(self, world: World, seed: int, *, crash_at: int | None = None, shape: Shape = ANY) -> None:
        self.world, self.crash_at, self.shape = world, crash_at, shape
        self.rng = random.Random(seed)  # noqa: S311
        world.here.rng = random.Random(seed)  # noqa: S311 - of its own: what is made once is not made in each schedule
        random.seed(seed)
        self.steps = self.faults = self._numbers = self._serials = 0
        self.found: list[str] = []
        self.checker = Checker(world)
        self.hub = Hub(world.here.clock, self.rng, self._decide, self._ended)
        self.acts: list[tuple[int, str]] = []
        self._acted = False
        self._runs = 0
        self._until: dict[str, int] = {}
        self._finished: list[Run] = []

    @property
    def seen(self) -> Any:
        return self.world.seen

    @property
    def trace(self) -> list[str]:
        return self.hub.trace

    def run(self) -> list[str]:
        """Carries the schedule out; what is wrong then, nothing if all is well."""
        self.world.here.hub = self.hub
        try:
            self._set_the_stage()
            self._play()
            self._come_to_rest()
            return [*self.found, *self.checker.problems()]
        except StuckError as error:
            return [*self.found, f"stuck: {error}"]
        finally:
            self.hub.clean_up()
            self.world.here.hub = None

    # -- what is to happen -------------------------------------------------------------------------------------

    def _set_the_stage(self) -> None:
        rng, world = self.rng, self.world
        self.most_bytes = SMALL if rng.random() < _SMALL_STORES else DEFAULT_BYTES
        world.start_over(max_deliveries=rng.choice([2, 3, 5]), max_message_bytes=self.most_bytes)
        disturbed = self.crash_at is None
        self.budget = rng.choice([0, 1, 1, 2, 3, 5]) if disturbed else 0
        self.rate = rng.choice([0.02, 0.05, 0.1])
        names = rng.choices(list(TOPOLOGIES), list(TOPOLOGIES.values()))[0]
        self.pipelines = [world.pipelines[name] for name in names]
        shape = self.shape
        self.how = shape.how or (ALONE if rng.random() < _ALONE else HERE)
        self.sizes = [shape.size] if shape.size else [1, 1, 1, 2, 2, 4]
        self.rate = 0.05 if shape.fault else self.rate
        self.budget = 2 if shape.fault else self.budget
        if len(names) > 1:
            world.seen["two pipelines, one dead-letter store"] += 1
            world.seen["two databases, one store name"] += "twin" in names
        for pipeline in self.pipelines:
            if shape.on_frames or (shape is ANY and rng.random() < _ON_FRAMES):
                pipeline.on_frames = shape.on_frames or rng.choice(ON_FRAMES)
                world.deploy(pipeline, pipeline.versions.pop())
                world.seen["a chain with DataFrames"] += 1
                world.seen["DataFrame handlers between others"] += pipeline.on_frames == BETWEEN
            pipeline.takes_in = shape.takes_in or rng.random() < 0.15
        if shape.slow or rng.random() < 0.05:
            self._slow_down()
        if disturbed and not shape.fault:
            acts = rng.choices(list(ACTS), list(ACTS.values()), k=rng.choice([0, 0, 0, 1, 1, 2]))
            self.acts = sorted((rng.randint(1, 250), act) for act in acts)

    def _slow_down(self) -> None:
        """Deliveries that together take longer than a lease, which whoever makes them must keep."""
        self.world.slow, self.world.lease = SLOW, SHORT_LEASE
        self.how, self.sizes = ALONE, [3]
        self.world.seen["a slow destination"] += 1
        if self.rng.random() < 0.5:
            self.budget, self.pipelines = 0, self.pipelines[:1]

    def _play(self) -> None:
        rng = self.rng
        for pipeline in self.pipelines:
            self._produce([self._tell(pipeline, f"m{number}") for number in range(rng.choice(self.sizes))])
        if rng.random() < 0.8:
            self.hub.run()
        if self.shape.hammered or (self.crash_at is None and rng.random() < 0.03):
            self._hammer()
        if self.shape.weather or (self.crash_at is None and rng.random() < 0.05):
            self._bad_weather()
        for pipeline in self.pipelines:
            for number in range(rng.choice([1, 1, 1, 1, 2])):
                self._runs += 1
                self._begin(first_pass(pipeline, f"run{number}", rng.choice([2, 10]), self.how))
        self.hub.run()
        while self.acts:
            self._act(self.acts.pop(0)[1])
            self.hub.run()
        if self.crash_at is None and rng.random() < _REPLAYED:
            self._replay_the_dead()

    def _replay_the_dead(self) -> None:
        """Somebody has mended what was wrong, or thinks so, and replays what lies in the dead-letter store."""
        dead = self.checker.dead()
        if self.rng.random() < 0.7:
            for told in dead:
                told.plan = replace(told.plan, refusals={}, kills=None)
        for pipeline in self.pipelines:
            ids = sorted({told.id for told in dead if told.pipeline == pipeline.name})
            if ids:
                self._begin(replay(pipeline, f"again{self.steps}", {"ids": ids, "how": self.how}))
        self.hub.run()

    def _hammer(self) -> None:
        """Runs that claim and are never heard of again, until the store gives their messages up."""
        self._acted = True
        for number in range(self.world.databases.stores[1].properties.max_deliveries):
            run = first_pass(self.pipelines[0], f"hammer{number}", 10, HERE)
            run.stages = (("listen",),)
            self._begin(run)
            self.hub.run()
            self.world.time_passes(1000)

    def _bad_weather(self) -> None:
        """Run after run meets the same error, which is no death and nobody's fault."""
        what = self.shape.weather or self.rng.choice(list(LASTING))
        how = ALONE if what == "no files" else self.how
        self._acted = True
        self._until[what] = MOST_CALLS
        for number in range(self.world.databases.stores[1].properties.max_deliveries + 1):
            self._begin(first_pass(self.pipelines[0], f"weather{number}", 10, how))
            self.hub.run()
            self.world.time_passes(1000)
        self._until.pop(what, None)

    def _come_to_rest(self) -> None:
        self.budget, self.crash_at = 0, None
        self.world.databases.away.clear()
        self._until.clear()
        for number in range(ROUNDS):
            waiting = {self.world.told[one].pipeline for one in self.checker.waiting()}
            if not waiting:
                return
            self.world.time_passes(1000)
            for pipeline in self.pipelines:
                if pipeline.name in waiting:
                    self._begin(self._sweep(pipeline, f"sweep{number}"))
                    self._begin(first_pass(pipeline, f"later{number}", 100, HERE))
            self.hub.run()

    # -- acts: what people and other programs do -----------------------------------------------------------------

    def _act(self, act: str) -> None:
        pipeline = self.rng.choice(self.pipelines)
        self.trace.append(f"somebody: {act}")
        self._acted = True
        doing: dict[str, Callable[[Pipeline], None]] = {
            "resend": self._resend,
            "purge": lambda one: self._begin(Run(one, f"purge{self.steps}", "person", (("purge",),))),
            "deploy": self._deploy,
            "clear": self._clear,
            "dead letters away": lambda _: self._away("dead"),
            "store away": lambda one: self._away(one.stores.store.name),
            "forge": self._forge,
            "sweep": lambda one: self._begin(self._sweep(one, f"sweep.{self.steps}")),
            "another run": self._another,
        }
        if act in LASTING:
            self._until[act] = self.steps + self.rng.choice([40, 150, 300])
        else:
            doing[act](pipeline)

    def _tell(
        self,
        pipeline: Pipeline,
        message_id: str,
        plan: Plan | None = None,
        *,
        content: dict[str, Any] | None = None,
        content_type: str | None = None,
    ) -> Told:
        self._serials += 1
        plan = plan or draw(self.rng, pipeline.flows)
        size, too_large = self._draw_size() if content_type is None else (0, False)
        text = f"message {self._serials}".ljust(size, ".")
        content = {"serial": self._serials, "text": text, **(content or {})}
        if content_type is not None and pipeline.takes_in:
            # A store takes what looks like the record of a failure whatever its size, but not from a broker.
            too_large = weight(Message(message_id, content, content_type=content_type)) > self.most_bytes
        told = Told(
            self._serials,
            pipeline.name,
            message_id,
            content,
            plan,
            content_type=content_type,
            too_large=too_large,
            since=len(pipeline.versions) - 1,
        )
        self.world.told[told.serial] = told
        return told

    def _draw_size(self) -> tuple[int, bool]:
        """How long a text is, and whether that is too long. What just fits must also fit wherever it is moved to."""
        if self.most_bytes != SMALL or self.rng.random() < 0.5:
            return 0, False
        too_large = self.rng.random() < 0.4
        self.world.seen["as large as can be"] += not too_large
        return (2 * SMALL, True) if too_large else (SMALL - _BESIDE, False)

    def _produce(self, messages: list[Told]) -> None:
        pipeline = self.world.pipelines[messages[0].pipeline]
        self._numbers += 1
        run = Run(pipeline, f"producer{self._numbers}", "producer", (("produce",),), {"messages": messages})
        self._begin(run)

    def _resend(self, pipeline: Pipeline) -> None:
        """An id comes again, of a message that may be finished, forgotten, waiting or dead by now."""
        known = sorted({told.id for told in self.world.told.values() if told.pipeline == pipeline.name})
        if known:
            self._produce([self._tell(pipeline, self.rng.choice(known))])

    def _deploy(self, pipeline: Pipeline) -> None:
        change = self.rng.choice(list(CHANGES))
        self.world.seen[f"chain changed: {change}"] += 1
        self.world.deploy(pipeline, CHANGES[change])

    def _clear(self, pipeline: Pipeline) -> None:
        runs = [run for run in self._finished if run.pipeline is pipeline and run.kind in ("first", "replay")]
        if runs:
            run = self.rng.choice(runs)
            self._finished.remove(run)
            self.world.seen["cleared"] += 1
            run.stage, run.failed, run.tries, run.cleared = 0, False, {}, run.cleared + 1
            run.params.pop("selected", None)
            self._begin(run)

    def _away(self, name: str) -> None:
        self.world.seen[f"away: {'dead letters' if name == 'dead' else 'store'}"] += 1
        self.world.databases.away.add(name)
        self._until[name] = self.steps + self.rng.choice([10, 40, 150])

    def _forge(self, pipeline: Pipeline) -> None:
        """A producer sends what looks like the record of somebody else's failure, all done."""
        victims = [one for one in self.world.told.values() if one.pipeline == pipeline.name]
        if victims:
            victim = self.rng.choice(victims)
            message = Message(victim.id, victim.content, sequence_number=self.rng.choice([1, 2, 3]))
            done = dict.fromkeys(pipeline.flows)
            error = {"type": "Forged", "handler": "crm", "message": "no", "stack": "", "attempt": 1}
            record = build_record(message, {}, errors={"crm": error}, done=done, snapshot={}, chain=pipeline.name)
            self.world.seen["forged record"] += 1
            self._produce([self._tell(pipeline, "forged", Plan(), content=record, content_type=FAILURE_TYPE)])

    def _another(self, pipeline: Pipeline) -> None:
        """One more run begins while others are at work."""
        self._numbers += 1
        self._begin(first_pass(pipeline, f"another{self._numbers}", 10, self.how))

    def _sweep(self, pipeline: Pipeline, run_id: str) -> Run:
        return Run(pipeline, run_id, "sweep", (("reconcile",),), {"how": HERE})

    # -- Airflow -----------------------------------------------------------------------------------------------

    def _begin(self, run: Run) -> None:
        if run.stage < len(run.stages):
            for name in run.stages[run.stage]:
                self._start(run, name)
        else:
            self._finished.append(run)

    def _start(self, run: Run, name: str) -> None:
        run.tries[name] = run.tries.get(name, 0) + 1
        self._numbers += 1
        task = Task(self.world, run, name)
        process = Process(f"{self._numbers}:{run.pipeline.name}.{run.run_id}.{name}#{run.tries[name]}", task)
        run.live.append(process)
        self.hub.start(process, task)

    def _ended(self, process: Process) -> None:
        if isinstance(process.about, Executor):
            self.world.seen["a part of a plan tried again"] += process.about.attempt > 0
            if process.killed:
                self.trace.append(f"{process.name} ended: KILLED")
                self.world.seen["an executor died, and its driver did not"] += 1
                self._died(process)
            elif process.strands[0].error is not None:
                self.world.allowed_duplicates += self.world.unrecorded(process.about.pipeline)
            return
        task: Task = process.about
        run, strand = task.run, process.strands[0]
        run.live.remove(process)
        good = not process.killed and strand.error is None
        self.trace.append(f"{process.name} ended: {'KILLED' if process.killed else strand.error or strand.result}")
        self.world.note_accepted(run.params.get("messages", []))
        if process.killed:
            self._died(process)
        elif not good:
            self._failed(process, strand.error)
        if not task.current or run.abandoned:
            return
        if not good and run.tries[task.name] < TRIES:
            self._start(run, task.name)
            return
        run.failed = run.failed or not good
        if good and strand.result and (strand.result["failed"] or strand.result["stranded"]):
            self._replay(run, strand.result["stranded"])
        if not any(other.about.current for other in run.live):
            last = len(run.stages) - 1
            run.stage = last if run.failed and run.stage < last else run.stage + 1
            self._begin(run)

    def _replay(self, run: Run, stranded: list[str]) -> None:
        if run.kind == "sweep":
            self._begin(replay(run.pipeline, f"{run.run_id}.replay", {"ids": stranded, "how": HERE}))
        else:
            self._begin(replay_of(run, stranded))

    def _died(self, process: Process) -> None:
        self.world.allowed_duplicates += self.world.unrecorded(process.about.pipeline)
        self.world.died(process)
        self.found += [f"{lost}, at once" for lost in self.checker.lost() if f"{lost}, at once" not in self.found]

    def _failed(self, process: Process, error: BaseException | None) -> None:
        if isinstance(error, LeaseLostError) or "its lease ran out" in str(error):
            self.world.seen["a lost lease noticed"] += 1
            if not self._disturbed():
                self.found.append(f"unexpected: {process.name} has lost its lease, and nobody was in its way")
        self.world.allowed_duplicates += self.world.unrecorded(process.about.pipeline)
        self.world.failed(process)
        changed = len(process.about.pipeline.versions) > 1
        if not isinstance(error, _TASK_ERRORS) and not changed:
            self.found.append(f"unexpected: {process.name} ended with {error!r}")

    def _disturbed(self) -> bool:
        killers = any(told.kills for told in self.world.told.values())
        return bool(self.faults or self._acted or killers or len(self.pipelines) > 1 or self._runs > 1)

    # -- faults ------------------------------------------------------------------------------------------------

    def _decide(self, process: Process, what: str) -> str:
        """What happens to this process at this step, and to the world before it."""
        self.steps += 1
        if self.steps > MOST_CALLS:
            raise StuckError(f"no end after {self.steps} steps")
        while self.acts and self.acts[0][0] <= self.steps:
            self._act(self.acts.pop(0)[1])
        for name, until in list(self._until.items()):
            if until <= self.steps:
                del self._until[name]
                self.world.databases.away.discard(name)
        if self.steps == self.crash_at:
            return self._fault(process, KILL, what)
        for name, (fault, percent) in LASTING.items():
            if name in self._until and self._can(process, fault, what) and self.rng.random() * 100 < percent:
                self.world.seen[f"for a while: {name}"] += 1
                return fault
        rare = what.startswith(("send", "file", "broker"))  # beside transactions
        if self.budget <= 0 or self.rng.random() >= self.rate * (5 if rare else 1):
            return GO
        fault = self._draw_fault(process, what)
        return GO if fault is None else self._fault(process, fault, what)

    def _draw_fault(self, process: Process, what: str) -> str | None:
        if not what.startswith(self.shape.at):
            return None
        faults = {self.shape.fault: 1} if self.shape.fault else FAULTS
        can = {fault: weight for fault, weight in faults.items() if self._can(process, fault, what)}
        return self.rng.choices(list(can), list(can.values()))[0] if can else None

    def _can(self, process: Process, fault: str, what: str) -> bool:
        """Whether this can happen at such a step."""
        at_handler, task = what.startswith("send "), process.about
        if fault in (AWAY, ANSWER_LOST, NO_MEMORY):
            return not at_handler and not what.startswith(("file", "broker"))
        if fault == TIMEOUT:
            return at_handler and task.run.params.get("how") == HERE
        if fault == ABANDON:
            return isinstance(task, Task)
        if fault == NO_FILES:
            return what.startswith("file")
        return at_handler if fault == OUT_OF_MEMORY else True

    def _fault(self, process: Process, fault: str, what: str) -> str:
        self.budget -= 1
        self.faults += 1
        self.world.seen[fault] += 1
        self.trace.append(f"{process.name}: {fault} at {what}")
        if fault == JUMP:
            self.world.time_passes(self.world.lease * self.rng.choice([1 / 3, 2 / 3, 7 / 6]))
            most = max(map(self.world.unrecorded, self.pipelines))
            self.world.allowed_duplicates += most * self.hub.processes
            return GO
        if fault == ABANDON:
            process.about.run.abandoned = True
            return KILL
        if fault == STALL:
            self._stall(process)
        return fault

    def _stall(self, process: Process) -> None:
        """Stopped for long enough that Airflow takes it for dead and starts another; it will wake up some time."""
        task: Task | Executor = process.about
        process.stalled = True
        self.world.allowed_duplicates += self.world.unrecorded(task.pipeline)
        self.world.suffer(task.pipeline, task.run_id, process.name)
        if isinstance(task, Task) and task.current and task.run.tries[task.name] < TRIES:
            task.current = False
            self.world.seen["two tries at once"] += 1
            self._start(task.run, task.name)
