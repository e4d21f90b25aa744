"""What an executor does with a part of a batch: run the source flow, or deliver to one destination.

A message's failure is a ledger entry, never an exception: the rest of the batch moves on. Exceptions that do leave a
step are about the infrastructure, such as a database that is away or a lease that was lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark import TaskContext

from homing.calling.limits import Rate, share_rates
from homing.delivery import records
from homing.errors import ContentError, UnreadableMessageError
from homing.ledger import DROPPED, FAILED, FILTERED, PROCESSED, SOURCE_FLOW, Entry, Fence, Ledger
from homing.message import JSON, Message, decode
from homing.pipeline import Drop, HandlerChain, HandlerError, MessageContext, load_chain
from homing.pipeline.failure import as_json, describe
from homing.pipeline.flows import DestinationFlow, Flow, RouterFlow, SourceFlow
from homing.pipeline.outcome import Ended
from homing.spark.columns import PROCESSED as PROCESSED_COLUMNS
from homing.spark.columns import TALLY, UNFIT, rows_of, to_batch
from homing.spark.lanes import Lanes
from homing.spark.recorder import Recorder
from homing.stores import open_store
from homing.stores.sql import SqlStore, rows

Row = dict[str, Any]

#: The type of the error of a message that kills its worker.
CRASH = "homing.WorkerCrash"


@dataclass(frozen=True)
class Task:
    """What travels to the executors: names, never open connections."""

    chain: str
    store_url: str
    fence: Fence
    #: The messages the run holds; None for all that are read.
    held: frozenset[str] | None = None
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


def gave_up(entry: Entry | None, fence: Fence) -> bool:
    """Whether a worker of this very run died of the message."""
    if entry is None or entry.error is None:
        return False
    return bool(entry.error["type"] == CRASH and entry.run_id == fence.run_id)


@lru_cache(maxsize=8)
def _ledger(store_url: str) -> Ledger:
    """One connection pool per Python worker: they live on from one task to the next."""
    store = open_store(store_url)
    assert isinstance(store, SqlStore)
    return store.ledger()


# -- the source flow -------------------------------------------------------------------------------------------


def process(task: Task, batches: Iterator[pa.RecordBatch], stop: int | None = None) -> Iterator[pa.RecordBatch]:
    """Runs the source flow over stored messages, up to the processor `stop`; yields those that are to go on."""
    chain, ledger = task.load_chain(), task.ledger()
    source = SourceFlow(chain.source.processors[:stop])
    with task.recorder() as recorder:
        for batch in batches:
            messages = list(rows_of(batch))
            subjects = [records.subject(row) for row in messages]
            known = ledger.known([about.message_id for about in subjects])
            left: dict[int, Left] = {}
            for place, about in enumerate(subjects):
                entries = known.get((about.message_id, about.life), {}) if known else {}
                before = entries.get(SOURCE_FLOW)
                if before is None or not (before.state == DROPPED or task.gave_up(before)):
                    done = _process(source, messages[place], about, before, recorder)
                    if done is not None:
                        left[place] = _write_down(messages[place], done)
            yield _written(batch, messages, left)


def _process(
    source: SourceFlow, row: Row, subject: records.Subject, before: Entry | None, recorder: Recorder
) -> MessageContext | None:
    """The message after the source flow, or None when it was dropped or failed."""
    about = subject.entry(SOURCE_FLOW, FAILED)

    def begin() -> MessageContext:
        origin = _origin(row)
        return MessageContext(origin.message, dict(origin.properties))

    done = _run(source, begin, about, left_out=DROPPED, recorder=recorder)
    if done is not None and before is not None and not before.done:
        recorder.add(about._replace(state=PROCESSED))
    return done


def go_on(
    task: Task, flow_name: str, start: int, stop: int, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Runs these processors of a flow over messages that others have processed before."""
    chain = task.load_chain()
    processors = chain.source.processors if flow_name == SOURCE_FLOW else _flow(chain, flow_name).processors
    flow, left_out = SourceFlow(processors[start:stop]), DROPPED if flow_name == SOURCE_FLOW else FILTERED
    with task.recorder() as recorder:
        for batch in batches:
            messages = list(rows_of(batch))
            # Whoever planned this left out what a worker died of, unless the crash was in this very flow.
            known = task.ledger().known([row["id"] for row in messages]) if task.fence.crashed else {}
            left: dict[int, Left] = {}
            for place, row in enumerate(messages):
                if not task.gave_up(known.get((row["id"], row["sequence"]), {}).get(flow_name)):
                    about = _about(row, flow_name)
                    done = _run(flow, partial(_context, row), about, left_out=left_out, recorder=recorder)
                    if done is not None:
                        left[place] = _write_down(row, done)
            yield _written(batch, messages, left)


def _run(
    flow: SourceFlow, begin: Callable[[], MessageContext], about: Entry, *, left_out: str, recorder: Recorder
) -> MessageContext | None:
    """The message after these processors, or None when it was left out by a rule or failed."""
    recorder.begin(about)
    try:
        context = begin()
        flow.run(context)
    except Drop as drop:
        recorder.add(about._replace(state=left_out, result=as_json(str(drop))))
    except HandlerError as error:
        recorder.add(_failure(about, error))
    except ContentError as error:
        recorder.add(about._replace(error=describe(error, "read", 1)))
    else:
        return context
    return None


class Left(NamedTuple):
    """What the processors left of a message, written down at once: thousands of contexts kept until the end of the
    batch would be looked through by the garbage collector again and again."""

    message: str
    encoding: str
    properties: str
    #: The row of the message, where the row that was read recorded its failure.
    instead: Row | None


def _write_down(row: Row, context: MessageContext) -> Left:
    encoded, properties = context.write_down()
    instead = _unwrapped(row, context.message) if records.is_failure(row) else None
    return Left(encoded.body, encoded.encoding, properties, instead)


def _written(batch: pa.RecordBatch, messages: list[Row], left: dict[int, Left]) -> pa.RecordBatch:
    """What is left of a batch, with the contents and properties as they are now."""
    if any(one.instead is not None for one in left.values()):
        whole = [{**(one.instead or messages[place]), **one._asdict()} for place, one in left.items()]
        return to_batch(whole, PROCESSED_COLUMNS)
    changed = {name: [getattr(one, name) for one in left.values()] for name in ("message", "encoding", "properties")}
    # The other columns stay as they are: most are empty, and making Python objects of them costs the most.
    rest = batch if len(left) == batch.num_rows else batch.take(pa.array(list(left), pa.int64()))
    columns = [
        pa.array(changed[field.name], field.type) if field.name in changed else rest.column(field.name).cast(field.type)
        for field in PROCESSED_COLUMNS
    ]
    return pa.RecordBatch.from_arrays(columns, schema=PROCESSED_COLUMNS)


def _about(row: Row, flow_name: str) -> Entry:
    return Entry(row["id"], flow_name, FAILED, batch_id=row["batch_id"], life=row["sequence"])


def _context(row: Row) -> MessageContext:
    """What the processors before left of the message. Raises UnreadableMessageError."""
    return MessageContext(rows.to_message(row), decode(JSON, row["properties"], row["id"]))


def _flow(chain: HandlerChain, name: str) -> DestinationFlow:
    flow = next(flow for flow in chain.flows if flow.name == name)
    assert isinstance(flow, DestinationFlow)
    return flow


def _origin(row: Row) -> records.Origin:
    if row["encoding"] == UNFIT:
        raise UnreadableMessageError(f"message {row['id']} has values its columns do not allow: {row['message']}")
    return records.origin_of(row)


def _unwrapped(row: Row, message: Message) -> Row:
    """The row of the message whose failure this row records, its content left out."""
    about = records.subject(row)
    return {
        **row,
        **rows.envelope(message),
        "id": about.message_id,
        "sequence": about.life,
        "batch_id": about.batch_id,
    }


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
            messages = [row for row in rows_of(batch) if task.held is None or row["id"] in task.held]
            known = ledger.known([row["id"] for row in messages])
            tally: Counter[str] = Counter()
            waiting = []
            for row in messages:
                before = known.get((row["id"], row["sequence"]), {}).get(flow_name)
                if before is not None and (before.done or task.gave_up(before)):
                    tally["skipped" if before.done else before.state] += 1
                else:
                    waiting.append(row)
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


def _deliver(flow: Flow | Lanes, messages: list[Row], recorder: Recorder, pace: Rate | None) -> Iterator[str]:
    """Delivers these messages, recording each as soon as it is known how it ended; yields the states."""
    about, contexts = [], []
    for row in messages:
        if pace is not None:
            pace.wait()
        entry = _about(row, flow.name)
        try:
            contexts.append(_context(row))
            about.append(entry)
        except ContentError as error:  # a DataFrame handler may write what is no JSON
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


# -- after a crash ---------------------------------------------------------------------------------------------


def blame(ledger: Ledger, fence: Fence) -> str | None:
    """Records as failed what a worker had in hand when it died; the message's id, or None when nobody knows."""
    if fence.suspect is None:
        return None
    message_id, flow, batch_id, life = decode(JSON, fence.suspect)
    error = {"type": CRASH, "message": "the worker died while it had this message in hand", "handler": fence.step}
    entry = Entry(message_id, flow, FAILED, batch_id=batch_id, life=life, error={**error, "stack": "", "attempt": 1})
    ledger.record(fence, [entry])
    return str(message_id)
