"""What an executor does with a part of a batch: run the source flow, or deliver to one destination.

A message's failure is a ledger entry, never an exception: the rest of the batch moves on. Exceptions that do leave a
step are about the infrastructure, such as a database that is away or a lease that was lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa

from homing.delivery import records
from homing.errors import ContentError
from homing.ledger import DROPPED, FAILED, PROCESSED, SOURCE_FLOW, Entry, Fence, Ledger
from homing.message import JSON, decode, encode, encode_json
from homing.pipeline import Drop, HandlerChain, HandlerError, MessageContext, load_chain
from homing.pipeline.failure import as_json, describe
from homing.pipeline.flows import Flow
from homing.pipeline.outcome import Ended
from homing.spark.columns import PROCESSED as PROCESSED_COLUMNS
from homing.spark.columns import TALLY, rows_of, to_batch
from homing.spark.recorder import Recorder
from homing.stores import open_store
from homing.stores.sql import SqlStore, rows

Row = dict[str, Any]


@dataclass(frozen=True)
class Task:
    """What travels to the executors: names, never open connections."""

    chain: str
    store_url: str
    fence: Fence

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
    with Recorder(ledger, task.fence) as recorder:
        for batch in batches:
            messages = list(rows_of(batch))
            known = ledger.entries(row["id"] for row in messages)
            processed = [_process(chain, row, known.get(row["id"], {}), recorder) for row in messages]
            yield to_batch([row for row in processed if row is not None], PROCESSED_COLUMNS)


def _process(chain: HandlerChain, row: Row, known: dict[str, Entry], recorder: Recorder) -> Row | None:
    """The row after the source flow, or None when the message was dropped or failed."""
    before = known.get(SOURCE_FLOW)
    if before is not None and before.state == DROPPED:
        return None
    batch_id = row["batch_id"]
    try:
        origin = records.origin_of(row)
        batch_id = origin.batch_id
        context = MessageContext(origin.message, dict(origin.properties))
        chain.run_source(context)
        done = _processed_row(row, context, batch_id)
    except Drop as drop:
        recorder.add(Entry(row["id"], SOURCE_FLOW, DROPPED, result=str(drop), batch_id=batch_id))
        return None
    except HandlerError as error:
        recorder.add(_failure(row["id"], SOURCE_FLOW, batch_id, error))
        return None
    except ContentError as error:
        described = describe(error, "read", 1)
        recorder.add(Entry(row["id"], SOURCE_FLOW, FAILED, error=described, batch_id=batch_id))
        return None
    if before is not None and not before.done:
        recorder.add(Entry(row["id"], SOURCE_FLOW, PROCESSED, batch_id=batch_id))
    return done


def _processed_row(row: Row, context: MessageContext, batch_id: str) -> Row:
    encoded = encode(context.get_content())
    return {
        **row,
        **rows.envelope(context.message),
        "batch_id": batch_id,
        "encoding": encoded.encoding,
        "message": encoded.body,
        "properties": encode_json(context.to_record()["properties"]),
    }


# -- one destination -------------------------------------------------------------------------------------------


def deliver(task: Task, flow_name: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Delivers processed messages to one destination, skipping those that have it; yields a tally."""
    chain, ledger = task.load_chain(), task.ledger()
    flow = next(flow for flow in chain.flows if flow.name == flow_name)
    with Recorder(ledger, task.fence) as recorder:
        for batch in batches:
            messages = list(rows_of(batch))
            known = ledger.entries(row["id"] for row in messages)
            tally: Counter[str] = Counter()
            waiting = []
            for row in messages:
                before = known.get(row["id"], {}).get(flow_name)
                if before is not None and before.done:
                    tally["skipped"] += 1
                else:
                    waiting.append(row)
            for start in range(0, len(waiting), flow.batch):
                tally.update(_deliver(flow, waiting[start : start + flow.batch], recorder))
            yield to_batch([{"state": state, "messages": number} for state, number in tally.items()], TALLY)


def _deliver(flow: Flow, messages: list[Row], recorder: Recorder) -> Iterator[str]:
    """Delivers these messages, recording each as soon as it is known how it ended; yields the states."""
    contexts = [MessageContext(rows.to_message(row), decode(JSON, row["properties"], row["id"])) for row in messages]
    for place, ended in flow.deliver_many(contexts):
        entry = _entry(flow.name, messages[place], ended)
        recorder.add(entry)
        yield entry.state


def _entry(flow: str, row: Row, ended: Ended) -> Entry:
    if isinstance(ended, HandlerError):
        return _failure(row["id"], flow, row["batch_id"], ended)
    return Entry(
        row["id"],
        flow,
        ended.state,
        destination=ended.destination,
        attempts=ended.attempts,
        result=as_json(ended.result),
        batch_id=row["batch_id"],
    )


def _failure(message_id: str, flow: str, batch_id: str, error: HandlerError) -> Entry:
    return Entry(
        message_id,
        flow,
        FAILED,
        attempts=error.attempts,
        error=describe(error.__cause__ or error, error.handler, error.attempts),
        snapshot=error.snapshot,
        batch_id=batch_id,
    )
