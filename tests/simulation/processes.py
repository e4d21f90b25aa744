"""What the processes of a pipeline do, store call by store call: the protocol's users, with the real `Batch` inside.

The executors' part follows `homing.spark.steps`: name the message after a crash, deliver, note it in chunks, keep the
lease. Every call of a store or the ledger passes through a proxy, which is where the schedule interferes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from homing.delivery import Batch, PipelineStores, records
from homing.errors import StoreError
from homing.ledger import DELIVERED, DROPPED, FAILED, FILTERED, PROCESSED, SOURCE_FLOW, Entry, Fence
from homing.message import JSON, MessageRef, decode, encode_json
from tests.simulation.world import CHUNK, FLOWS, NANOSECONDS, RefusedError, World

LEASE = 600.0
CRASH = "homing.WorkerCrash"

Interfere = Callable[[str, Callable[[], Any]], Any]


class StillFailingError(Exception):
    """A replay that has to be tried again."""


class Proxy:
    """A store or ledger as one process sees it: every call is announced before it is made."""

    def __init__(self, real: Any, interfere: Interfere) -> None:
        self._real = real
        self._interfere = interfere

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._real, name)
        if not callable(found):
            return found
        who = f"{getattr(self._real, 'name', 'ledger')}.{name}"

        def call(*args: Any, **kwargs: Any) -> Any:
            def now() -> Any:
                answer = found(*args, **kwargs)
                return iter(list(answer)) if name == "batch_rows" else answer

            return self._interfere(who, now)

        return call


class Process:
    """One process of one run."""

    def __init__(self, world: World, run_id: str, interfere: Interfere) -> None:
        real = world.stores
        self.world = world
        self.run_id = run_id
        self._interfere = interfere
        parts = (real.store, real.failures, real.dead_letters, real.ledger)
        self.stores = PipelineStores(*(Proxy(part, interfere) for part in parts))  # type: ignore[arg-type]
        self.ledger = self.stores.ledger
        self.batch = Batch(self.stores, run_id, FLOWS, chain="orders")

    # -- the tasks ---------------------------------------------------------------------------------------------

    def produce(self, ids: list[str]) -> None:
        for one in ids:
            self.stores.store.store({"number": one}, id=one)
            self.world.accepted.add(one)

    def listen(self, limit: int) -> None:
        self.batch.claim(limit, LEASE)

    def process(self) -> None:
        if self.batch.reclaim((), LEASE):
            with_fence = self._open("process")
            ready = self._source_flow(with_fence)
            self.ledger.record(with_fence, [])
            self.world.published[self.run_id] = ready
            self.ledger.close_step(with_fence)

    def deliver(self, flow: str) -> None:
        if self.batch.reclaim((), LEASE):
            fence = self._open(f"deliver.{flow}")
            ready = self.world.published.get(self.run_id)
            self._deliver(fence, flow, self._source_flow(fence) if ready is None else ready)
            self.ledger.close_step(fence)

    def settle(self) -> dict[str, Any]:
        self.world.published.pop(self.run_id, None)
        self.batch.settle()
        return {"failed": self.batch.awaiting_replay(), "stranded": self.batch.stranded()}

    def replay(self, batch_id: str, ids: list[str]) -> None:
        if not self.batch.reclaim([*ids, *self.batch.unfinished(batch_id)], LEASE):
            return
        fence = self._open("replay")
        ready = self._source_flow(fence)
        for flow in FLOWS:
            self._deliver(fence, flow, ready)
        self.ledger.close_step(fence)
        if self.batch.acknowledge_complete():
            raise StillFailingError

    def settle_replay(self) -> None:
        self.batch.finish_replay()

    # -- what executors do -------------------------------------------------------------------------------------

    def _open(self, step: str) -> Fence:
        fence = self.ledger.open_step(self.run_id, step, LEASE)
        self._held, self._kept = self.batch.held(), self.world.clock.now
        if fence.suspect is not None:
            *who, flow, batch_id = decode(JSON, fence.suspect)
            error = {"type": CRASH, "message": "it kills", "handler": step, "stack": "", "attempt": 1}
            self.ledger.record(fence, [Entry(MessageRef(*who), flow, FAILED, batch_id=batch_id, error=error)])
        return fence

    def _rows(self, flow: str) -> list[tuple[Entry, Entry | None]]:
        """For each message the run holds, a blank entry and what the ledger has for this flow."""
        blanks = [
            records.about(row, copies=held.copies)._replace(flow=flow)
            for held in self.batch.held()
            for row in held.store.batch_rows(held.lease)
        ]
        known = self.ledger.known([blank.message_id for blank in blanks])
        return [(blank, known.get(blank.ref, {}).get(flow)) for blank in blanks]

    def _gave_up(self, entry: Entry | None) -> bool:
        return entry is not None and entry.error is not None and entry.error["type"] == CRASH and (
            entry.run_id == self.run_id
        )  # fmt: skip

    def _source_flow(self, fence: Fence) -> set[str]:
        pen, ready = Pen(self, fence), set()
        for about, before in self._rows(SOURCE_FLOW):
            if before is not None and (before.state == DROPPED or self._gave_up(before)):
                continue
            if self.world.plans[about.message_id].dropped:
                pen.add(about, DROPPED)
                continue
            ready.add(about.message_id)
            if before is not None and not before.done:
                pen.add(about, PROCESSED)
        pen.flush()
        return ready

    def _deliver(self, fence: Fence, flow: str, ready: set[str]) -> None:
        pen = Pen(self, fence)
        for about, before in self._rows(flow):
            if about.message_id not in ready or (before is not None and (before.done or self._gave_up(before))):
                continue
            pen.begin(about)
            pen.add(about, self._send(about.message_id, flow))
        pen.flush()

    def _send(self, message_id: str, flow: str) -> str:
        if flow in self.world.plans[message_id].filtered:
            return FILTERED
        try:
            self._interfere(f"send {message_id} to {flow}", lambda: self.world.send(message_id, flow))
        except RefusedError:
            return FAILED
        return DELIVERED

    def keep_lease(self, fence: Fence) -> None:
        """As `homing.delivery.keeper`: three times per lease, of what was held when the step was opened."""
        if self.world.clock.now - self._kept < LEASE / 3 * NANOSECONDS:
            return
        self.ledger.renew_step(fence, LEASE)
        for held in self._held:
            held.store.renew(held.lease, LEASE)
        self._kept = self.world.clock.now


class Pen:
    """As `homing.spark.recorder`: chunks, and after a crash one at a time with its name noted first."""

    def __init__(self, process: Process, fence: Fence) -> None:
        self._process, self._fence = process, fence
        self._pending: list[Entry] = []

    def begin(self, about: Entry) -> None:
        if self._fence.crashed:
            suspect = [*about.ref, about.flow, about.batch_id]
            self._process.ledger.suspect(self._fence, encode_json(suspect))

    def add(self, about: Entry, state: str) -> None:
        error = {"type": "RefusedError", "message": "no", "handler": about.flow, "stack": "", "attempt": 1}
        failed = state == FAILED
        self._pending.append(about._replace(state=state, error=error if failed else None))
        if self._fence.crashed or len(self._pending) >= CHUNK:
            self.flush()
            self._process.keep_lease(self._fence)

    def flush(self) -> None:
        if self._fence.crashed:
            self._process.ledger.suspect(self._fence, None, self._pending)
        else:
            self._process.ledger.record(self._fence, self._pending)
        self._pending = []


#: What ends a task without ending the process model: Airflow tries it again.
TASK_ERRORS = (StoreError, StillFailingError)
