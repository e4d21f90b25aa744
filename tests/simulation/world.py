"""The world of one schedule: databases, pipelines with their chains, destinations that keep score, a broker.

It is made once and emptied before each schedule. What it keeps of a message is the truth that the product's books are
compared with: written by producers and destinations, never by the product.
"""

from __future__ import annotations

import json
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from homing.delivery import PipelineStores, recorder
from homing.pipeline import HandlerChain, MessageContext, destination, message_filter
from homing.spark import jobs
from homing.store_ref import StoreRef
from homing.stores import open_store
from homing.stores.sql import SqlStore
from homing.stores.sql.batches import Batches
from tests.simulation import files, frames
from tests.simulation.broker import Connection, Queue
from tests.simulation.databases import Databases
from tests.simulation.frames import Column
from tests.simulation.hub import START, Process
from tests.simulation.plans import SOURCE, RefusedError, Told
from tests.simulation.virtual import Here, install, replace

#: How many deliveries an executor makes before it records them: what one fault may cost in duplicates.
CHUNK = 1
LEASE = 600.0
#: Where each delivery is slow: a few of them take longer than this lease.
SLOW, SHORT_LEASE = 10.0, 24.0
FLOWS = ("crm", "lake")
#: What a chain may become while messages wait: a destination more, one less, one by another name.
CHANGES = {"added": ("crm", "lake", "audit"), "removed": ("crm",), "renamed": ("crm", "warehouse")}

#: Which handlers of a chain take DataFrames: all up to the first destination, or some that stand between others.
ALL, BETWEEN = ON_FRAMES = "all", "between"

OUT_OF_MEMORY, TIMEOUT = "OUT OF MEMORY", "TIMEOUT"
_NUMBERS = count()


class TaskFailedError(Exception):
    """What ends a task: Airflow tries it again."""


class TaskTimeout(BaseException):
    """Airflow's word that a task has taken too long, raised in whatever it does then."""


def time_is_up(_number: int, _frame: object) -> None:
    """A signal handler, as Airflow's is."""
    raise TaskTimeout


@dataclass
class Pipeline:
    """A chain with its stores. `versions` are the destinations it has had, the last one those it has now."""

    name: str
    stores: PipelineStores
    queue: Queue = field(default_factory=Queue)
    versions: list[tuple[str, ...]] = field(default_factory=lambda: [FLOWS])
    #: Whether its messages come from the broker.
    takes_in: bool = False
    #: Which of its handlers take DataFrames, if any do: then only Spark can run them.
    on_frames: str | None = None

    @property
    def flows(self) -> tuple[str, ...]:
        return self.versions[-1]

    @property
    def chain(self) -> str:
        return f"simulated_chains:{self.name}"

    @property
    def all_stores(self) -> tuple[SqlStore, SqlStore, SqlStore]:
        return self.stores.store, self.stores.failures, self.stores.dead_letters


class World:
    def __init__(self, work_dir: Path) -> None:
        self.work_dir = work_dir
        self.here = Here()
        self.databases = Databases(self.here, work_dir, ("one", "two"))
        dead = self.databases.open("one", "dead")
        self.pipelines = {
            "orders": self._pipeline("orders", self.databases.open("one", "orders"), dead),
            "refunds": self._pipeline("refunds", self.databases.open("one", "refunds"), dead),
            # In another database, under the same name.
            "twin": self._pipeline("twin", self.databases.open("two", "orders"), dead),
        }
        self._chains: dict[tuple[str, tuple[str, ...], str | None], HandlerChain] = {}
        self._module = ModuleType("simulated_chains")
        self._number = next(_NUMBERS)
        for store in self.databases.stores:
            store.count()
        for pipeline in self.pipelines.values():
            pipeline.stores.ledger.known(["make the tables"])
        self.databases.made()
        self.start_over()

    def _pipeline(self, name: str, store: Any, dead: Any) -> Pipeline:
        failures = store.sibling(f"{store.name}_failures")
        self.databases.stores.append(failures)
        return Pipeline(name, PipelineStores(store, failures, dead, store.ledger()))

    def start_over(self, **properties: Any) -> None:
        """Empty, and the stores have these properties."""
        self.here.clock.now = START
        self.databases.start_over(**properties)
        self.told: dict[int, Told] = {}
        self.seen: Counter[str] = Counter()
        #: How many seconds each delivery takes, and how many somebody who works on a batch may be silent.
        self.slow, self.lease = 0.0, LEASE
        #: How many deliveries may be made twice: each fault adds what it can cost.
        self.allowed_duplicates = 0
        for pipeline in self.pipelines.values():
            shutil.rmtree(self.work_dir / pipeline.name, ignore_errors=True)
            pipeline.versions, pipeline.takes_in, pipeline.on_frames = [], False, None
            pipeline.queue.start_over()
            self.deploy(pipeline, FLOWS)

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Has the product run in this world until the patch is undone."""
        install(patch, self.here)
        self.databases.install(patch)
        files.install(patch, self.here)
        frames.install(patch, self.here)
        patch.setattr(recorder, "ENTRIES_PER_FLUSH", CHUNK)
        patch.setattr(jobs, "_end", self._ended)
        patch.setattr(jobs, "_end_when_told", lambda: None, raising=False)
        patch.setattr(jobs, "_show_our_log_lines", lambda: None)
        patch.setattr(jobs.secrets, "read_secrets_file", lambda _: None)
        replace(patch, [(open_store, self.open_store)])
        patch.setattr(StoreRef, "resolve", lambda reference, _find=None: self.resolve(reference.text))
        patch.setattr(Batches, "finish_dead", self._counted(Batches.finish_dead))
        patch.setitem(sys.modules, "simulated_chains", self._module)

    def _ended(self, code: int, reason: str) -> int:
        """A job says why it ends: here as its operator would pass it on."""
        raise TaskFailedError(reason)

    def _counted(self, finish_dead: Any) -> Any:
        def counted(batches: Batches, keys: Any, *args: Any) -> Any:
            self.seen["a message that its store gave up was finished"] += bool(keys)
            return finish_dead(batches, keys, *args)

        return counted

    # -- what a process finds ----------------------------------------------------------------------------------

    def resolve(self, reference: str) -> str:
        """The URLs in a process's environment."""
        strand = self.here.strand()
        assert strand is not None
        which = {"env:HOMING_STORE": "store", "env:HOMING_DEAD_LETTER_STORE": "dead_letters"}.get(reference)
        return (
            reference if which is None else f"simulated://{self._number}/{strand.process.about.pipeline.name}/{which}"
        )

    def open_store(self, reference: str, **_: Any) -> SqlStore:
        _, name, which = self.resolve(reference).removeprefix("simulated://").split("/")
        found = getattr(self.pipelines[name].stores, which)
        assert isinstance(found, SqlStore)
        return found

    def connect(self, pipeline: Pipeline) -> Connection:
        strand = self.here.strand()
        return Connection(pipeline.queue, self.here.pause, strand.process if strand else None)

    # -- chains ------------------------------------------------------------------------------------------------

    def deploy(self, pipeline: Pipeline, flows: tuple[str, ...]) -> None:
        """The chain has these destinations from now on."""
        pipeline.versions.append(flows)
        key = pipeline.name, flows, pipeline.on_frames
        if key not in self._chains:
            self._chains[key] = self._chain(*key)
        setattr(self._module, pipeline.name, self._chains[key])

    def _chain(self, name: str, flows: tuple[str, ...], on_frames: str | None) -> HandlerChain:
        first, *others = flows
        return HandlerChain(
            name,
            source_flow=self._source_flow(on_frames),
            destinations_flow=[self._flow(first, on_frames), *(self._flow(flow) for flow in others)],
        )

    def _source_flow(self, on_frames: str | None) -> list[Any]:
        """One filter; or three, of which each lets in the messages whose number tells it to."""
        filters = [self._filter, self._filter_of_frames, self._filter]
        if on_frames != BETWEEN:
            return [filters[on_frames == ALL]("wanted", self.let_in)]

        def let_in(place: int, content: dict[str, Any]) -> bool:
            return content["serial"] % len(filters) != place or self.let_in(content)

        return [make(f"wanted{place}", partial(let_in, place)) for place, make in enumerate(filters)]

    def _flow(self, flow: str, on_frames: str | None = None) -> Any:
        def fits(content: dict[str, Any]) -> bool:
            return flow not in self.told[content["serial"]].plan.filtered

        @destination(name=flow, max_retries=0)
        def deliver(ctx: MessageContext) -> None:
            self.send(ctx.get_content(), flow)

        @destination(name=flow, dataframe=True)
        def deliver_frame(frame: Any) -> None:
            self.seen["a DataFrame delivered"] += 1
            self.send_all([json.loads(row["message"]) for row in frame.collect()], flow)

        make = self._filter_of_frames if on_frames else self._filter
        return [make(f"for_{flow}", fits)], deliver_frame if on_frames == ALL else deliver

    def _filter(self, name: str, rule: Callable[[dict[str, Any]], bool]) -> Any:
        @message_filter(name=name)
        def applied(ctx: MessageContext) -> bool:
            return rule(ctx.get_content())

        return applied

    def _filter_of_frames(self, name: str, rule: Callable[[dict[str, Any]], bool]) -> Any:
        @message_filter(name=name, dataframe=True)
        def applied(frame: Any) -> Any:
            return frame.where(Column(lambda row: rule(json.loads(row["message"]))))

        return applied

    # -- handlers ----------------------------------------------------------------------------------------------

    def let_in(self, content: dict[str, Any]) -> bool:
        told = self.told[content["serial"]]
        self._maybe_refuse(told, SOURCE)
        if told.plan.dropped:
            self.seen["dropped by rule"] += 1
        return not told.plan.dropped

    def send(self, content: dict[str, Any], flow: str) -> None:
        """The destination: takes the message, refuses it, or both; or kills whoever brings it."""
        self.send_all([content], flow)

    def send_all(self, contents: list[dict[str, Any]], flow: str) -> None:
        """These at once: the destination takes all of them or none."""
        messages = [self.told[content["serial"]] for content in contents]
        decision = self.here.pause(f"send {', '.join(str(told.serial) for told in messages)} to {flow}")
        if decision == TIMEOUT:
            time_is_up(signal.SIGUSR1, None)
        if self.slow:
            self.here.wait(self.slow)
        if decision == OUT_OF_MEMORY:
            for told in messages:
                told.failures += 1
            raise MemoryError
        asked = [self._maybe_refuse(told, flow) for told in messages]
        for told in messages:
            told.sent[flow] = told.sent.get(flow, 0) + 1
        for told, times in zip(messages, asked, strict=True):
            if times <= told.plan.late_refusals.get(flow, 0):
                self.allowed_duplicates += len(messages)
                told.failures += 1
                raise RefusedError(f"{flow} took {told.serial} and failed then")

    def _maybe_refuse(self, told: Told, flow: str) -> int:
        asked = told.asked[flow] = told.asked.get(flow, 0) + 1
        plan = told.plan
        if plan.kills is not None and plan.kills[0] == flow and asked <= plan.kills[1]:
            told.kills += 1
            self.seen["a message kills"] += 1
            strand = self.here.strand()
            assert strand is not None
            assert self.here.hub is not None
            self.here.hub.kill(strand.process)
        if asked <= plan.refusals.get(flow, 0):
            told.failures += 1
            raise RefusedError(f"{flow or 'the source flow'} does not want {told.serial}")
        if asked <= plan.too_much.get(flow, 0):
            told.failures += 1
            raise MemoryError
        return asked

    # -- what the world sees of its messages -------------------------------------------------------------------

    def note_accepted(self, messages: list[Told]) -> None:
        """Those of these messages that are there now have been accepted, be their producer dead."""
        for told in messages:
            pipeline = self.pipelines[told.pipeline]
            rows = [text for (text,) in self.databases.select(pipeline.stores.store, "message")]
            there = {serial_of(json.loads(text)) for text in rows}
            there |= {message.content["serial"] for message in pipeline.queue.everything()}
            if told.serial in there and not told.accepted:
                told.accepted = True
                before = [one for one in self.told.values() if one.accepted and one.id == told.id and one is not told]
                self.seen["an id came again"] += any(one.pipeline == told.pipeline for one in before)

    def died(self, process: Process) -> None:
        """Whoever holds messages for a run is gone: they have suffered for it, and the broker takes its own back."""
        for pipeline in self.pipelines.values():
            for connection in list(pipeline.queue.connections):
                if connection.owner is process:
                    connection.lost()
        self.suffer(process.about.pipeline, process.about.run_id, process.name)

    def failed(self, process: Process) -> None:
        """Who ends with an error and cannot close its step, for want of memory or a ledger, looks dead to all others:
        once, however many come and fail after it."""
        task = process.about
        for step in self.databases.open_steps(task.pipeline.stores.ledger, task.run_id):
            self.suffer(task.pipeline, task.run_id, f"{step} of {task.run_id} left open")

    def suffer(self, pipeline: Pipeline, run_id: str | None, why: str) -> None:
        """The messages that this run holds, or those that everybody has held for too long, are not at fault."""
        for store in pipeline.all_stores:
            for token, batch_id, due, text in self.databases.select(
                store, "lock_token", "batch_id", "time_next", "message"
            ):
                ran_out = due is not None and due <= self.here.clock.now
                if token is not None and (batch_id == run_id if run_id else ran_out):
                    told = self.told.get(serial_of(json.loads(text)))
                    if told is not None:
                        told.suffered.add(why if run_id else token)

    def unrecorded(self, pipeline: Pipeline) -> int:
        """How many deliveries of it may be made again when somebody ends: those that are made and not recorded."""
        return len(self.told) if pipeline.on_frames else CHUNK

    def time_passes(self, seconds: float) -> None:
        self.here.clock.advance(seconds)
        for pipeline in self.pipelines.values():
            self.suffer(pipeline, None, "")


def serial_of(content: Any) -> int:
    """Which message this content is, or records the failure of."""
    if "serial" in content:
        return int(content["serial"])
    return int(json.loads(content["message"]["body"])["serial"])
