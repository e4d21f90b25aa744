"""Task: what travels to Spark's executors, and what they do with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import pyarrow as pa
from pyspark import TaskContext

from homing.declared_connections import connections
from homing.delivery.arrow import steps
from homing.delivery.arrow.columns import rows_of
from homing.delivery.arrow.page import Page
from homing.delivery.step import ProcessorRun, Step
from homing.invocation.guard import share_rates
from homing.ledger import DROPPED, FILTERED, SOURCE_FLOW, Fence, Ledger
from homing.message import MessageRef
from homing.pipeline import DestinationFlow, SourceFlow, load_chain
from homing.pipeline_store import is_pipeline_store
from homing.stores import open_store


@dataclass(frozen=True)
class Task:
    """What a task needs to run the chain. It is sent to the executors, so it holds names and no open connections."""

    chain: str
    # No part of the repr: a URL may hold a password.
    store_url: str = field(repr=False)
    fence: Fence
    #: The messages the run holds; None for all that are read.
    held: frozenset[MessageRef] | None = None
    #: How many tasks run at the same time, and share a destination's rate.
    tasks: int = 1
    #: The most messages a second that each destination gets, for a replay in a single task; None for no limit.
    rate: float | None = None
    #: What its handlers log in with. Secrets, which a worker has only while the task runs: another's may be the next.
    connections: Mapping[str, str] = field(default_factory=dict, repr=False)

    def process(self, pages: Iterator[Page], stop: int | None = None) -> Iterator[pa.RecordBatch]:
        """Runs the source flow over stored messages, up to the processor `stop`; yields those that are to go on."""
        with connections(self.connections):
            yield from steps.process(self._step(), pages, stop)

    def go_on(
        self, flow_name: str, start: int, stop: int, batches: Iterator[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        """Runs these processors of a flow over messages that others have processed before: what comes between handlers
        that take DataFrames."""
        step = self._step()
        is_source = flow_name == SOURCE_FLOW
        processors = (step.chain.source if is_source else _destination_flow(step, flow_name)).processors[start:stop]
        with connections(self.connections), step.recorder() as recorder:
            left_out = DROPPED if is_source else FILTERED
            run = ProcessorRun(step, SourceFlow(processors, flow_name), recorder, left_out, ends=False)
            for batch in batches:
                messages = list(rows_of(batch))
                # The plan left out what a worker died of, unless the crash was in this very flow.
                known = step.ledger.known([row["id"] for row in messages]) if step.fence.crashed else {}
                output = steps.OutputBuilder()
                for place, row in enumerate(messages):
                    context = run.run(steps.begin, row, steps.about_row(row, flow_name), known)
                    if context is not None:
                        output.add(place, context)
                    if output.is_full:
                        recorder.rest()
                        yield output.of(batch)
                        output = steps.OutputBuilder()
                recorder.rest()
                yield output.of(batch)

    def deliver(self, flow_name: str, batches: Iterator[pa.RecordBatch], start: int = 0) -> Iterator[pa.RecordBatch]:
        """Delivers processed messages to one destination, skipping those that have it; yields a tally.

        `start` is how many of the flow's processors the messages have behind them.
        """
        share_rates(self.tasks if self.rate is None else 1)
        with connections(self.connections):
            yield from steps.deliver(self._step(), flow_name, batches, start, TaskContext.get())

    def ledger(self) -> Ledger:
        return _ledger(self.store_url)

    def _step(self) -> Step:
        return Step(load_chain(self.chain), self.ledger(), self.fence, self.held, self.rate)


def _destination_flow(step: Step, name: str) -> DestinationFlow:
    flow = step.flow(name)
    assert isinstance(flow, DestinationFlow)
    return flow


@lru_cache(maxsize=8)
def _ledger(store_url: str) -> Ledger:
    """One connection pool per Python worker: they live on from one task to the next."""
    store = open_store(store_url)
    assert is_pipeline_store(store)
    return store.ledger()
