"""What an executor does with a part of a batch: run the source flow, or deliver to one destination.

A message's failure is a ledger entry, never an exception: the rest of the batch moves on. Exceptions that do leave a
step are about the infrastructure, such as a database that is away or a lease that was lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import pyarrow as pa
from pyspark import TaskContext

from homing.delivery.crash_tracking import gave_up
from homing.errors import ContentError
from homing.failure import as_json
from homing.invocation.error_info import describe
from homing.invocation.rate_limit import Rate, share_rates
from homing.ledger import DROPPED, FAILED, FILTERED, PROCESSED, SOURCE_FLOW, Entry, Fence, Ledger
from homing.message import JSON, MessageRef, decode
from homing.pipeline import Drop, HandlerChain, HandlerError, MessageContext, load_chain
from homing.pipeline.flows import DestinationFlow, Flow, RouterFlow, SourceFlow
from homing.pipeline.outcome import Ended
from homing.pipeline_store import is_pipeline_store
from homing.portions import MOST_BYTES
from homing.row import to_message
from homing.spark import arrow_page
from homing.spark.columns import PROCESSED as PROCESSED_COLUMNS
from homing.spark.columns import STORED, TALLY, rows_of, to_batch
from homing.spark.recorder import Recorder
from homing.spark.router_pool import Lanes
from homing.stores import open_store

Row = dict[str, Any]


@dataclass(frozen=True)
class Task:
    """What travels to the executors: names, never open connections."""

    chain: str
    store_url: str
    fence: Fence
    #: The messages the run holds; None for all that are read.
    held: frozenset[MessageRef] | None = None
    #: How many tasks run at the same time, and share a destination's rate.
    tasks: int = 1
    #: Messages per second at most, for a replay that one task makes alone.
    rate: float | None = None

    def recorder(self, part: TaskContext | None = None) -> Recorder:
        return Recorder(self.ledger(), self.fence, part)

    def gave_up(self, entry: Entry | None) -> bool:
        """Whether a worker of this very run died of the message: then it is left to the replay."""
        return gave_up(entry, self.fence)

    def load_chain(self) -> HandlerChain:
        return load_chain(self.chain)

    def ledger(self) -> Ledger:
        return _ledger(self.store_url)


@lru_cache(maxsize=8)
def _ledger(store_url: str) -> Ledger:
    """One connection pool per Python worker: they live on from one task to the next."""
    store = open_store(store_url)
    assert is_pipeline_store(store)
    return store.ledger()


# -- the source flow -------------------------------------------------------------------------------------------


def process(task: Task, read: Iterator[arrow_page.Page], stop: int | None = None) -> Iterator[pa.RecordBatch]:
    """Runs the source flow over stored messages, up to the processor `stop`; yields those that are to go on."""
    chain, ledger = task.load_chain(), task.ledger()
    # If messages are only begun here, the step that ends them records that they do not fail any more.
    ends = stop is None or stop >= len(chain.source.processors)
    with task.recorder() as recorder:
        leg = Leg(SourceFlow(chain.source.processors[:stop]), SOURCE_FLOW, DROPPED, recorder)
        for page in read:
            entries = [page.about(row) for row in page.rows]
            known = ledger.known([about.ref.id for about in entries])
            left = Left()
            for place, (row, about) in enumerate(zip(page.rows, entries, strict=True)):
                before = known.get(about.ref, {}).get(SOURCE_FLOW) if known else None
                if before is not None and (before.state == DROPPED or task.gave_up(before)):
                    continue
                done = leg.run(page.begin, row, about)
                if done is None:
                    continue
                if ends and before is not None and not before.done:
                    recorder.add(about._replace(state=PROCESSED))
                left.add(place, done)
                if page.is_record(row):
                    left.instead[place] = page.unwrapped(row, done.message)
                if left.is_full:
                    recorder.rest()
                    yield left.of(page.batch)
                    left = Left()
            recorder.rest()
            yield left.of(page.batch)


def go_on(
    task: Task, flow_name: str, start: int, stop: int, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Runs these processors of a flow over messages that others have processed before."""
    chain = task.load_chain()
    processors = chain.source.processors if flow_name == SOURCE_FLOW else _flow(chain, flow_name).processors
    left_out = DROPPED if flow_name == SOURCE_FLOW else FILTERED
    with task.recorder() as recorder:
        leg = Leg(SourceFlow(processors[start:stop], flow_name), flow_name, left_out, recorder)
        for batch in batches:
            messages = list(rows_of(batch))
            # The plan left out what a worker died of, unless the crash was in this very flow.
            known = task.ledger().known([row["id"] for row in messages]) if task.fence.crashed else {}
            left = Left()
            for place, row in enumerate(messages):
                about = _about(row, flow_name)
                if not task.gave_up(known.get(about.ref, {}).get(flow_name)):
                    done = leg.run(_context, row, about)
                    if done is not None:
                        left.add(place, done)
                if left.is_full:
                    recorder.rest()
                    yield left.of(batch)
                    left = Left()
            recorder.rest()
            yield left.of(batch)


@dataclass(frozen=True)
class Leg:
    """Some processors of a flow, and what is recorded of messages that end in them."""

    flow: SourceFlow
    name: str
    left_out: str
    recorder: Recorder

    def run(self, begin: Callable[[Any], MessageContext], row: Any, about: Entry) -> MessageContext | None:
        """The message after these processors, or None when it was left out by a rule or failed. `about` is what is
        recorded of the row's message, should it fail in this flow."""
        if self.recorder.careful:
            self.recorder.begin(about)
        try:
            context = begin(row)
            self.flow.run(context)
        except Drop as drop:
            self.recorder.add(about._replace(state=self.left_out, result=as_json(str(drop))))
        except HandlerError as error:
            self.recorder.add(_failure(about, error))
        except ContentError as error:
            self.recorder.add(about._replace(error=describe(error, "read", 1)))
        else:
            return context
        return None


class Left:
    """What the processors left of a page, written down at once: thousands of contexts kept until the end of it would be
    looked through by the garbage collector again and again."""

    def __init__(self) -> None:
        self.places: list[int] = []
        self.written: dict[str, list[str]] = {"message": [], "encoding": [], "properties": []}
        #: The headers that processors changed, by place.
        self.headers: dict[int, str | None] = {}
        #: The rows of messages, where those that were read recorded their failures, by place.
        self.instead: dict[int, Row] = {}
        self._weight = 0

    @property
    def is_full(self) -> bool:
        """Whether what the processors made of the messages is a portion by now: it may be more than there was."""
        return self._weight >= MOST_BYTES

    def add(self, place: int, context: MessageContext) -> None:
        encoded, properties = context.write_down()
        self.places.append(place)
        self.written["message"].append(encoded.body)
        self.written["encoding"].append(encoded.encoding)
        self.written["properties"].append(properties)
        self._weight += len(encoded.body) + len(properties)
        if context.has_new_headers:
            headers = self.headers[place] = context.write_headers()
            self._weight += len(headers or "")

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """What is left of this batch, with the contents and properties as they are now."""
        rest = batch if len(self.places) == batch.num_rows else batch.take(pa.array(self.places, pa.int64()))
        if self.instead:
            instead = [self.instead.get(place, row) for place, row in zip(self.places, rows_of(rest), strict=True)]
            rest = to_batch(instead, STORED)
        written: dict[str, Sequence[str | None]] = {**self.written}
        if self.headers:
            kept = zip(self.places, rest.column("headers").to_pylist(), strict=True)
            written["headers"] = [self.headers.get(place, headers) for place, headers in kept]
        # The other columns stay as they are: most are empty, and making Python objects of them costs the most.
        columns = [
            pa.array(written[field.name], field.type)
            if field.name in written
            else rest.column(field.name).cast(field.type)
            for field in PROCESSED_COLUMNS
        ]
        return pa.RecordBatch.from_arrays(columns, schema=PROCESSED_COLUMNS)


def _about(row: Row, flow_name: str) -> Entry:
    """What is recorded of a processed message, should it fail."""
    ref = MessageRef.of(row["table_id"], row["sequence"], row["id"])
    return Entry(ref, flow_name, FAILED, batch_id=row["batch_id"])


def _context(row: Row) -> MessageContext:
    """What the processors before left of the message. Raises UnreadableMessageError."""
    return MessageContext(to_message(row), decode(JSON, row["properties"], row["id"]))


def _flow(chain: HandlerChain, name: str) -> DestinationFlow:
    flow = next(flow for flow in chain.flows if flow.name == name)
    assert isinstance(flow, DestinationFlow)
    return flow


# -- one destination -------------------------------------------------------------------------------------------


def deliver(task: Task, flow_name: str, batches: Iterator[pa.RecordBatch], start: int = 0) -> Iterator[pa.RecordBatch]:
    """Delivers processed messages to one destination, skipping those that have it; yields a tally.

    `start` is how many of the flow's processors the messages have behind them.
    """
    chain, ledger = task.load_chain(), task.ledger()
    flow = next(flow for flow in chain.flows if flow.name == flow_name)
    if start:
        own = _flow(chain, flow_name)
        flow = replace(own, processors=own.processors[start:])
    share_rates(task.tasks if task.rate is None else 1)
    pace = None if task.rate is None else Rate(task.rate)
    size, threads = (1, 1) if task.fence.crashed else (flow.batch, _threads(flow))
    with (
        task.recorder(TaskContext.get()) as recorder,
        ThreadPoolExecutor(threads) as pool,
        _apart(flow, task) as target,
    ):
        for batch in batches:
            messages = [(row, _about(row, flow_name)) for row in rows_of(batch)]
            messages = [each for each in messages if task.held is None or each[1].ref in task.held]
            known = ledger.known([about.ref.id for _, about in messages])
            tally: Counter[str] = Counter()
            waiting = []
            for row, about in messages:
                before = known.get(about.ref, {}).get(flow_name)
                if before is not None and (before.done or task.gave_up(before)):
                    tally["skipped" if before.done else before.state] += 1
                else:
                    waiting.append((row, about))
            chunks = [waiting[first : first + size] for first in range(0, len(waiting), size)]
            if threads == 1:
                for chunk in chunks:
                    tally.update(_deliver(target, chunk, recorder, pace))
            else:
                # The first error, such as a lost lease, ends the rest: it is not called any more.
                for states in pool.map(lambda chunk: list(_deliver(target, chunk, recorder, pace)), chunks):
                    tally.update(states)
            yield to_batch([{"state": state, "messages": number} for state, number in tally.items()], TALLY)


def _threads(flow: Flow) -> int:
    """How many threads the flow's destination wants. Those behind a router have their own: see Lanes."""
    return flow.destination.threads if isinstance(flow, DestinationFlow) else 1


def _apart(flow: Flow, task: Task) -> AbstractContextManager[Flow | Lanes]:
    """The flow; a router's destinations apart from each other, unless only one message may be in hand."""
    return Lanes(flow) if isinstance(flow, RouterFlow) and not task.fence.crashed else nullcontext(flow)


def _deliver(
    flow: Flow | Lanes, messages: list[tuple[Row, Entry]], recorder: Recorder, pace: Rate | None
) -> Iterator[str]:
    """Delivers these messages, recording each as soon as it is known how it ended; yields the states."""
    about, contexts = [], []
    for row, entry in messages:
        if pace is not None:
            pace.wait()
        try:
            contexts.append(_context(row))
            about.append(entry)
        except ContentError as error:  # a DataFrame handler may write invalid JSON
            recorder.add(entry._replace(error=describe(error, "read", 1)))
            yield FAILED
    if about:
        recorder.begin(about[0])
    for place, ended in flow.deliver_many(contexts):
        entry = _entry(about[place], ended)
        recorder.add(entry)
        yield entry.state


def _entry(about: Entry, ended: Ended) -> Entry:
    if isinstance(ended, HandlerError):
        return _failure(about, ended)
    return about._replace(
        state=ended.state,
        destination=ended.destination,
        attempts=ended.attempts,
        result=as_json(ended.result),
    )


def _failure(about: Entry, error: HandlerError) -> Entry:
    return about._replace(
        attempts=error.attempts,
        error=describe(error.__cause__ or error, error.handler, error.attempts),
        snapshot=error.snapshot,
    )
