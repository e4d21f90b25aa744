"""The tasks of a pipeline, as Airflow's operators run them: the product's code, and nothing around it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from homing.delivery import Batch, Selection, take_in, work_files
from homing.delivery.batch import STRANDED_AFTER
from homing.delivery.failures import select
from homing.delivery.local_replay import replay_in_process
from homing.errors import StoreUnavailableError, TooLargeError
from homing.message import Message
from homing.pipeline import load_chain
from homing.spark import jobs
from homing.spark.submit import hadoop_shell
from tests.simulation.hub import Process
from tests.simulation.world import Pipeline, TaskFailedError, World

#: How often a task is tried.
TRIES = 3

# In one process for the whole chain; as the applications that Spark would run, without Spark; or with it.
HERE, ALONE, SPARK = "here", "alone", "spark"


@dataclass
class Run:
    """A DAG run: tasks in stages, each tried again, the last one run whatever happened."""

    pipeline: Pipeline
    run_id: str
    kind: str
    stages: tuple[tuple[str, ...], ...]
    params: dict[str, Any] = field(default_factory=dict)
    stage: int = 0
    tries: dict[str, int] = field(default_factory=dict)
    failed: bool = False
    #: Nobody carries it on: its scheduler, its machine or its DAG file is gone.
    abandoned: bool = False
    cleared: int = 0
    #: The processes that work for it, be they given up by Airflow.
    live: list[Process] = field(default_factory=list)

    @property
    def batch_id(self) -> str:
        """As operators make it of their DAG's id: two pipelines never have the same."""
        return f"{self.pipeline.name}/{self.run_id}"


def first_pass(pipeline: Pipeline, run_id: str, limit: int, how: str) -> Run:
    how = SPARK if pipeline.on_frames else how
    deliveries = tuple(f"deliver.{flow}" for flow in pipeline.flows)
    middle = ((HERE,),) if how == HERE else (("process",), deliveries)
    return Run(pipeline, run_id, "first", (("listen",), *middle, ("settle",)), {"limit": limit, "how": how})


def replay_of(run: Run, stranded: list[str]) -> Run:
    name = f"{run.run_id}.replay" + (str(run.cleared) if run.cleared else "")
    return replay(run.pipeline, name, {"batch": run.batch_id, "ids": stranded, "how": run.params["how"]})


def replay(pipeline: Pipeline, run_id: str, params: dict[str, Any]) -> Run:
    how = SPARK if pipeline.on_frames else params["how"]
    return Run(pipeline, run_id, "replay", (("replay",), ("settle_replay",)), {**params, "how": how})


@dataclass
class Task:
    """One try of one task of one run: what a process is about."""

    world: World
    run: Run
    name: str
    #: Airflow still waits for it.
    current: bool = True

    @property
    def pipeline(self) -> Pipeline:
        return self.run.pipeline

    @property
    def run_id(self) -> str:
        return self.run.batch_id

    def __call__(self) -> Any:
        kind, _, flow = self.name.partition(".")
        if kind == "deliver":
            return self.deliver(flow)
        work_: Callable[[], Any] = getattr(self, kind)
        return work_()

    # -- producers and people ----------------------------------------------------------------------------------

    def produce(self) -> None:
        for told in self.run.params["messages"]:
            message = Message(told.id, told.content, content_type=told.content_type)
            if not self.pipeline.takes_in:
                self._store(message)
            elif not told.accepted:
                self.pipeline.queue.publish(message)
            self.world.note_accepted([told])

    def _store(self, message: Message) -> None:
        try:
            self.pipeline.stores.store.store(message)
        except TooLargeError:
            self.world.seen["too large, and refused"] += 1

    def purge(self) -> None:
        if self.pipeline.stores.store.purge(0):
            self.world.seen["purged"] += 1

    # -- the first pass ----------------------------------------------------------------------------------------

    def listen(self) -> None:
        batch = self._batch()
        if self.pipeline.takes_in and not batch.is_known():
            self._take_in()
        batch.claim(self.run.params["limit"], self.world.lease)

    def _take_in(self) -> None:
        try:
            with self.world.connect(self.pipeline) as source:
                taken = take_in(source, self.pipeline.stores.store, self.run.params["limit"])
        except StoreUnavailableError:
            return
        self.world.seen["taken in"] += bool(taken)

    def here(self) -> None:
        batch = self._batch()
        if batch.reclaim((), self.world.lease):
            self._replay_here(batch)

    def process(self) -> None:
        if self._batch().reclaim((), self.world.lease):
            self._run(jobs.process_main, "--work-dir", self._work_dir)

    def deliver(self, flow: str) -> None:
        if self._batch().reclaim((), self.world.lease):
            self._run(jobs.deliver_main, "--work-dir", self._work_dir, "--flow", flow)

    def settle(self) -> dict[str, Any]:
        work_files.remove(self._work_dir, self.run_id, hadoop_shell)
        batch = self._batch()
        batch.settle()
        return {"failed": batch.awaiting_replay(), "stranded": batch.stranded()}

    # -- the replay --------------------------------------------------------------------------------------------

    def replay(self) -> None:
        stores, params = self.pipeline.stores, self.run.params
        if "selected" not in params:
            found = select(stores, Selection(batch=params.get("batch"), ids=params["ids"]))
            params["selected"] = [failure.ref.name for failure in found]
        batch = self._batch()
        if not params["selected"] or not batch.reclaim(params["selected"], self.world.lease):
            return
        self.world.seen["replayed"] += 1
        rows = self.world.databases.select(stores.dead_letters, "batch_id", "lock_token")
        self.world.seen["replayed from the dead letters"] += any(
            batch_id == self.run_id and token is not None for batch_id, token in rows
        )
        if params["how"] != HERE:
            self._run(jobs.replay_main)
            return
        self._replay_here(batch)
        if batch.acknowledge_complete():
            raise TaskFailedError("some still fail")

    def settle_replay(self) -> None:
        self._batch().finish_replay()

    # -- the sweep ---------------------------------------------------------------------------------------------

    def reconcile(self) -> dict[str, Any]:
        stores = self.pipeline.stores
        for batch_id in stores.store.view.expired_batches(STRANDED_AFTER):
            self.world.seen["left behind, and swept up"] += 1
            self._batch(batch_id).settle()
        self._batch().move_dead()
        return {"failed": 0, "stranded": stores.failures.view.overdue(STRANDED_AFTER)}

    # -- inside ------------------------------------------------------------------------------------------------

    @property
    def _work_dir(self) -> str:
        return f"{self.world.work_dir}/{self.pipeline.name}"

    def _batch(self, run_id: str | None = None) -> Batch:
        return Batch(self.pipeline.stores, run_id or self.run_id, self.pipeline.flows, chain=self.pipeline.name)

    def _replay_here(self, batch: Batch) -> None:
        replay_in_process(self.pipeline.stores, batch, load_chain(self.pipeline.chain), lease=self.world.lease)

    def _run(self, main: Callable[[list[str]], int], *more: str) -> None:
        alone = [] if self.pipeline.on_frames else ["--without-spark"]
        lease = str(self.world.lease)
        main(["--chain", self.pipeline.chain, "--run-id", self.run_id, "--lease", lease, *alone, *more])
