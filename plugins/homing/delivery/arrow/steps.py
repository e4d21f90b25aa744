"""Runs the source flow over a part of a batch in Arrow's columns, or delivers such a part to one destination."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from homing.delivery.arrow.columns import PROCESSED, STORED, TALLY, rows_of, to_batch
from homing.delivery.arrow.page import Page, read_pages
from homing.delivery.batch import Batch
from homing.delivery.recorder import Part
from homing.delivery.step import FlowRun, ProcessorRun, Step
from homing.ledger import FAILED, Entry
from homing.message import JSON, MessageRef, decode
from homing.pipeline import DestinationFlow, MessageContext, SourceFlow
from homing.portions import MOST_BYTES
from homing.row import to_message

Row = dict[str, Any]


def read(batch: Batch) -> Iterator[Page]:
    """The messages that a batch holds, read here and now."""
    for held in batch.held():
        for after, upto in held.store.scans().batch_ranges(held.lease, 1):
            yield from read_pages(held.store, after, upto, conditions=held.conditions, copies=held.copies)


def process(step: Step, pages: Iterator[Page], stop: int | None = None) -> Iterator[pa.RecordBatch]:
    """Runs the source flow over stored messages, up to the processor `stop`. Yields the messages that are to go on."""
    processors = step.chain.source.processors
    with step.recorder() as recorder:
        ends = stop is None or stop >= len(processors)
        source = ProcessorRun(step, SourceFlow(processors[:stop]), recorder, ends=ends)
        for page in pages:
            entries = [page.about(row) for row in page.rows]
            known = step.ledger.known([about.ref.id for about in entries])
            output = OutputBuilder()
            for place, (row, about) in enumerate(zip(page.rows, entries, strict=True)):
                context = source.run(page.begin, row, about, known)
                if context is None:
                    continue
                output.add(place, context)
                if page.is_record(row):
                    output.instead[place] = page.unwrapped(row, context.message)
                if output.is_full:
                    recorder.rest()
                    yield output.of(page.batch)
                    output = OutputBuilder()
            recorder.rest()
            yield output.of(page.batch)


def deliver(
    step: Step, flow_name: str, batches: Iterator[pa.RecordBatch], start: int = 0, part: Part | None = None
) -> Iterator[pa.RecordBatch]:
    """Delivers processed messages to one destination, except those it already has. Yields a tally for each batch.

    `start` is how many of the flow's processors the messages have already gone through.
    """
    flow = step.flow(flow_name)
    if start:
        assert isinstance(flow, DestinationFlow)
        flow = replace(flow, processors=flow.processors[start:])
    with step.recorder(part) as recorder, step.workers() as workers:
        run = FlowRun(step, flow, begin, recorder, workers)
        for batch in batches:
            messages = [(row, about_row(row, flow_name)) for row in rows_of(batch)]
            messages = [each for each in messages if step.held is None or each[1].ref in step.held]
            known = step.ledger.known([about.ref.id for _, about in messages])
            states = list[str]()
            waiting = ((row, about, known.get(about.ref, {}).get(flow_name)) for row, about in messages)
            workers.work_off([run.backlog(waiting, states)])
            yield to_batch([{"state": state, "messages": number} for state, number in Counter(states).items()], TALLY)


def counted(tally: pa.RecordBatch) -> Counter[str]:
    """Returns how many messages ended in each state, from a tally that `deliver` yielded."""
    return Counter({row["state"]: row["messages"] for row in rows_of(tally)})


def about_row(row: Row, flow_name: str) -> Entry:
    """Returns the entry that is recorded if this processed message fails."""
    ref = MessageRef.of(row["table_id"], row["sequence"], row["id"])
    return Entry(ref, flow_name, FAILED, batch_id=row["batch_id"])


def begin(row: Row) -> MessageContext:
    """Returns the message as the earlier processors left it. Raises UnreadableMessageError."""
    return MessageContext(to_message(row), decode(JSON, row["properties"], row["id"]))


class OutputBuilder:
    """Collects the messages of a page that go on, as the processors left them.

    Each message is written down as soon as it is added. Thousands of contexts that are kept until the end of the page
    would be work for the garbage collector again and again.
    """

    def __init__(self) -> None:
        self.places: list[int] = []
        self.written: dict[str, list[str]] = {"message": [], "encoding": [], "properties": []}
        #: The headers that processors changed, by place.
        self.headers: dict[int, str | None] = {}
        #: Where the row that was read is a failure record: the row of the message that failed, by place.
        self.instead: dict[int, Row] = {}
        self._weight = 0

    @property
    def is_full(self) -> bool:
        """Whether the messages collected weigh a whole portion. Processors may make them larger than they were."""
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
        """Returns the rows of this batch that go on, with the contents and properties as the processors left them."""
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
            for field in PROCESSED
        ]
        return pa.RecordBatch.from_arrays(columns, schema=PROCESSED)
