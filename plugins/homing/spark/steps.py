"""What an executor does with a part of a batch: run the source flow, or deliver to one destination.

A message's failure is a ledger entry, never an exception: the rest of the batch moves on. Exceptions that do leave a
step are about the infrastructure, such as a database that is away or a lease that was lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import pyarrow as pa

from homing.delivery import records
from homing.errors import ContentError, UnreadableMessageError
from homing.ledger import DROPPED, FAILED, PROCESSED, SOURCE_FLOW, Entry, Fence, Ledger, of_life
from homing.message import JSON, decode, encode, encode_json
from homing.pipeline import Drop, HandlerChain, HandlerError, MessageContext, load_chain
from homing.pipeline.failure import as_json, describe
from homing.pipeline.flows import Flow
from homing.pipeline.outcome import Ended
from homing.spark.columns import PROCESSED as PROCESSED_COLUMNS
from homing.spark.columns import TALLY, UNFIT, rows_of, to_batch
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

    def recorder(self) -> Recorder:
        return Recorder(self.ledger(), self.fence)

    def gave_up(self, entry: Entry | None) -> bool:
        """Whether a worker of this very run died of the message: then it is left to the replay."""
        crashed = entry is not None and entry.error is not None and entry.error["type"] == CRASH
        return crashed and entry is not None and entry.run_id == self.fence.run_id

    def load_chain(self) -> HandlerChain:
        return load_chain(self.chain)

    def ledger(self) -> Ledger:
        return _ledger(self.store_url)


@lru_cache(maxsize=8)
def _ledger(store_url: str) -> Ledger:
    """One connection pool per Python worker: they live on from one task to the next."""
    store = open_store(store_url)
    assert isinstance(store, SqlStore)
    return store.ledger()


# -- the source flow -------------------------------------------------------------------------------------------


def process(task: Task, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs the source flow over stored messages; yields those that are to be delivered."""
    chain, ledger = task.load_chain(), task.ledger()
    with task.recorder() as recorder:
        for batch in batches:
            messages = list(rows_of(batch))
            known = ledger.entries([records.message_id(row) for row in messages])
            processed = []
            for row in messages:
                entries = of_life(known.get(records.message_id(row), {}), records.life(row))
                before = entries.get(SOURCE_FLOW)
                if before is None or not (before.state == DROPPED or task.gave_up(before)):
                    processed.append(_process(chain, row, before, recorder))
            yield to_batch([row for row in processed if row is not None], PROCESSED_COLUMNS)


def _process(chain: HandlerChain, row: Row, before: Entry | None, recorder: Recorder) -> Row | None:
    """The row after the source flow, or None when the message was dropped or failed."""
    about = Entry(records.message_id(row), SOURCE_FLOW, FAILED, batch_id=records.batch_of(row), life=records.life(row))
    recorder.begin(about)
    try:
        origin = _origin(row)
        context = MessageContext(origin.message, dict(origin.properties))
        chain.run_source(context)
        done = _processed_row(row, context, about)
    except Drop as drop:
        recorder.add(replace(about, state=DROPPED, result=str(drop)))
        return None
    except HandlerError as error:
        recorder.add(_failure(about, error))
        return None
    except ContentError as error:
        recorder.add(replace(about, error=describe(error, "read", 1)))
        return None
    if before is not None and not before.done:
        recorder.add(replace(about, state=PROCESSED))
    return done


def _origin(row: Row) -> records.Origin:
    if row["encoding"] == UNFIT:
        raise UnreadableMessageError(f"message {row['id']} has values its columns do not allow: {row['message']}")
    return records.origin_of(row)


def _processed_row(row: Row, context: MessageContext, about: Entry) -> Row:
    encoded = encode(context.get_content())
    return {
        **row,
        **rows.envelope(context.message),
        "id": about.message_id,
        "sequence": about.life,
        "batch_id": about.batch_id,
        "encoding": encoded.encoding,
        "message": encoded.body,
        "properties": encode_json(context.to_record()["properties"]),
    }


# -- one destination -------------------------------------------------------------------------------------------


def deliver(task: Task, flow_name: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Delivers processed messages to one destination, skipping those that have it; yields a tally."""
    chain, ledger = task.load_chain(), task.ledger()
    flow = next(flow for flow in chain.flows if flow.name == flow_name)
    size = 1 if task.fence.crashed else flow.batch
    with task.recorder() as recorder:
        for batch in batches:
            messages = [row for row in rows_of(batch) if task.held is None or row["id"] in task.held]
            known = ledger.entries([row["id"] for row in messages])
            tally: Counter[str] = Counter()
            waiting = []
            for row in messages:
                before = of_life(known.get(row["id"], {}), row["sequence"]).get(flow_name)
                if before is not None and (before.done or task.gave_up(before)):
                    tally["skipped" if before.done else before.state] += 1
                else:
                    waiting.append(row)
            for start in range(0, len(waiting), size):
                tally.update(_deliver(flow, waiting[start : start + size], recorder))
            yield to_batch([{"state": state, "messages": number} for state, number in tally.items()], TALLY)


def _deliver(flow: Flow, messages: list[Row], recorder: Recorder) -> Iterator[str]:
    """Delivers these messages, recording each as soon as it is known how it ended; yields the states."""
    about = [Entry(row["id"], flow.name, FAILED, batch_id=row["batch_id"], life=row["sequence"]) for row in messages]
    recorder.begin(about[0])
    contexts = [MessageContext(rows.to_message(row), decode(JSON, row["properties"], row["id"])) for row in messages]
    for place, ended in flow.deliver_many(contexts):
        entry = _entry(about[place], ended)
        recorder.add(entry)
        yield entry.state


def _entry(about: Entry, ended: Ended) -> Entry:
    if isinstance(ended, HandlerError):
        return _failure(about, ended)
    return replace(
        about,
        state=ended.state,
        destination=ended.destination,
        attempts=ended.attempts,
        result=as_json(ended.result),
    )


def _failure(about: Entry, error: HandlerError) -> Entry:
    return replace(
        about,
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
