"""DataFrameFlow: runs flows with DataFrame handlers, and still records what became of each single message.

A DataFrame handler says nothing about single messages. Which messages it left out is seen from what comes out of it.
Which messages make it fail is found by trying smaller parts, until a message has failed alone. What it works on is
noted in the ledger before: if it crashes even the driver, the next attempt knows where to look.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial, reduce

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from homing.delivery import Batch, crash_tracking
from homing.delivery.entries import entry_of, is_over
from homing.delivery.leased_part import LeasedMessage, LeasedPart
from homing.delivery.step import SKIPPED
from homing.errors import HandlerError
from homing.failure import worker_crash
from homing.invocation.error_info import describe, sign_of, text_of
from homing.invocation.invalid_return import find_return_fault
from homing.invocation.rate_limit import RateLimiter
from homing.ledger import DELIVERED, DROPPED, FAILED, FILTERED, PROCESSED, SOURCE_FLOW, Entry, Fence, Ledger
from homing.message import MessageRef
from homing.pipeline import DestinationFlow, Drop
from homing.pipeline.flows import name_processor
from homing.pipeline.handlers import PROCESSORS, Handler
from homing.pipeline.outcome import DeliveryOutcome
from homing.spark import dataframe_handlers
from homing.spark.bisection import Bisection
from homing.spark.error_kinds import is_crash, is_fault
from homing.spark.smaller_parts import Keep, Parted, Results

log = logging.getLogger(__name__)

_CHUNK = 5_000  # rows of the ledger written at once

# Into how many parts the suspects are cut after a crash of the driver: a crash costs more than a few calls.
_PARTS = 32


@dataclass(frozen=True)
class Source:
    """The source flow.

    `read` returns messages of these parts of the batch, which have gone through the first `start` processors: the given
    ones, or all for None. `plan` applies a section of the flow to what was read.
    """

    processors: Sequence[Handler]
    start: int
    read: Callable[[Sequence[LeasedPart], Sequence[LeasedMessage] | None], DataFrame]
    plan: Callable[[DataFrame, dataframe_handlers.RowCounter, dataframe_handlers.Segment], DataFrame]
    keep: Keep

    @property
    def begins_native(self) -> bool:
        """Whether a DataFrame handler comes first, and reading runs no handler."""
        return self.start == 0

    @property
    def all(self) -> dataframe_handlers.Segment:
        return dataframe_handlers.Segment(self.start, len(self.processors), native=True)

    @property
    def sections(self) -> list[dataframe_handlers.Segment]:
        """Two sections of the flow: up to the last DataFrame handler, and what comes after it.

        The second records each message by itself. Without it, the first can be tried with many small parts, and Python
        need not be started for each of them.
        """
        last = max(cut.stop for cut in dataframe_handlers.segments(self.processors) if cut.native)
        rest = dataframe_handlers.Segment(last, len(self.processors), native=False)
        return [dataframe_handlers.Segment(self.start, last, native=True), *([rest] if rest.start < rest.stop else [])]


@dataclass(frozen=True)
class DataFrameFlow:
    """Runs flows with DataFrame handlers over a batch, and records what became of each message, for `fence`'s step."""

    spark: SparkSession
    ledger: Ledger
    batch: Batch
    fence: Fence

    def process(self, source: Source) -> list[DataFrame]:
        """Returns the messages that come out of the source flow: one frame, or several if parts were run alone."""
        frame = None if self.fence.crashed else self._at_once(source)
        kept = self._part_by_part(source) if frame is None else [frame]
        self.ledger.suspect(self.fence, None)
        return kept

    def _at_once(self, source: Source) -> DataFrame | None:
        """Runs the source flow over all messages in one part, if all of them are new. Returns what came out of it.

        Then the ids of the messages are read only if a message was left out, because that takes long. Returns None when
        it fails, or when it cannot be done so.
        """
        parts = self.batch.held()
        # A chain that begins with messages reads and handles them in one: what was read cannot be counted apart.
        if not source.begins_native or not all(map(self.batch.is_new, parts)):
            return None
        counter = dataframe_handlers.RowCounter()
        self.ledger.suspect(self.fence, crash_tracking.name_span(crash_tracking.Span()))
        try:
            frame = source.keep(source.plan(counter.begin(source.read(parts, None)), counter, source.all), counter)
            counter.verify()
            if not counter.let_pass(sum(held.lease.size for held in parts)):
                out = _ids(frame)
                _refuse_twice(out)
                leased = self.batch.messages()
                if len(leased) != counter.entered:
                    return None  # what came to the batch since, or was not read, was left out by no rule
                self._account(SOURCE_FLOW, source.processors, leased, out, DROPPED)
        except Exception as error:
            if not self._is_fault(error):
                raise
            log.info("batch %s is looked at part by part, because it failed as a whole", self.batch.run_id)
            return None
        return frame

    def _part_by_part(self, source: Source) -> list[DataFrame]:
        leased = self.batch.messages()
        known = self._known(leased, SOURCE_FLOW)
        waiting = [message for message in leased if not is_over(known.get(message.message_id), self.fence)]
        frames: list[DataFrame] | None = None
        for section in source.sections:
            if waiting:
                waiting, frames = self._through(source, section, waiting, frames, known)
        return frames or []

    def _through(
        self,
        source: Source,
        section: dataframe_handlers.Segment,
        waiting: Sequence[LeasedMessage],
        frames: Sequence[DataFrame] | None,
        known: Mapping[str, Entry],
    ) -> tuple[list[LeasedMessage], list[DataFrame]]:
        """Those of these messages that come out of a section of the source flow, and what comes out. `frames` is what
        came out of the section before it."""
        # Where handlers for messages come first, to read is to run them: then a part is read when its turn comes.
        rows = frames is None and not source.begins_native
        waiting = sorted(waiting, key=lambda message: message.row_id if rows else message.message_id)
        messages = None
        if not rows:
            given = source.read(self.batch.held(), None) if frames is None else reduce(DataFrame.union, frames)
            messages = Parted(self._only(given, waiting), len(waiting))
        results, passed = Results(self.spark, source.keep), list[LeasedMessage]()

        def call(some: Sequence[LeasedMessage]) -> None:
            counter = dataframe_handlers.RowCounter()
            self._take_in_hand(SOURCE_FLOW, some, rows=rows)
            part = source.read(self.batch.held(), some) if messages is None else messages.part(some)
            small = messages is not None and messages.is_small(some)
            result = results.of(source.plan(part, counter, section), counter, small=small)
            out = result.ids
            counter.verify()
            _refuse_twice(out)
            if out.total() != counter.left:
                raise HandlerError(f"{out.total()} messages came out of the chain, and {counter.left} were counted")
            self._account(SOURCE_FLOW, source.processors, some, out, DROPPED)
            here = [message for message in some if message.message_id in out]
            if section.stop == len(source.processors):
                self._record(message.entry(SOURCE_FLOW, PROCESSED) for message in here if message.message_id in known)
            results.add(result)
            passed.extend(here)

        search = self._bisection(call, partial(self._give_up, SOURCE_FLOW, source.processors), known)
        with messages or nullcontext():
            self._tell_untried(sum(search.over(part) for part in self._parts(waiting, rows=rows)))
        return passed, results.frames()

    def deliver(
        self,
        flow: DestinationFlow,
        processed: DataFrame,
        through: Callable[[DataFrame, str, Sequence[Handler], int, dataframe_handlers.RowCounter], DataFrame],
        each: Callable[[str, DataFrame, int], Counter[str]],
        rate: float | None = None,
    ) -> Counter[str]:
        """Delivers what is not done to one destination, of which the processors or the destination are native.

        A DataFrame destination cannot be slowed down, so with a `rate` it gets the messages in slices.
        """
        waiting, total, known = self._waiting(flow.name, processed)
        messages = Parted(self._only(processed, waiting), len(waiting))
        handlers = (*flow.processors, flow.destination)
        last = max(cut.stop for cut in dataframe_handlers.segments(handlers) if cut.native)
        start = min(last, len(flow.processors))

        def call(some: Sequence[LeasedMessage]) -> None:
            counter = dataframe_handlers.RowCounter()
            self._take_in_hand(flow.name, some, rows=False)
            frame = through(messages.part(some), flow.name, flow.processors[:start], 0, counter)
            if flow.destination.dataframe:
                total.update(self._hand_over(flow, frame, some, counter))
                return
            done = each(flow.name, frame, start)
            counter.verify()
            done[FILTERED] += self._account(flow.name, flow.processors, some, {}, FILTERED)
            total.update(done)

        def give_up(message: LeasedMessage, error: Exception) -> None:
            total[FAILED] += 1
            self._give_up(flow.name, handlers, message, error)

        search = self._bisection(call, give_up, known)
        with messages:
            slices = _slices(waiting, rate if flow.destination.dataframe else None)
            self._tell_untried(sum(search.over(some) for part in slices for some in self._parts(part, rows=False)))
        self.ledger.suspect(self.fence, None)
        return total

    def _hand_over(
        self,
        flow: DestinationFlow,
        frame: DataFrame,
        some: Sequence[LeasedMessage],
        counter: dataframe_handlers.RowCounter,
    ) -> Counter[str]:
        """Gives a frame to a DataFrame destination, and records it as delivered when that returns."""
        out = {message.message_id: 1 for message in some}
        if flow.processors:
            frame = frame.cache()
            out = _ids(frame)
            counter.verify()
            _refuse_twice(out)
        self.ledger.record(self.fence, [])  # raises if the step was taken over: another process delivers by now
        state, result = DELIVERED, None
        try:
            result = flow.destination.function(frame) if out else None
        except Drop:
            state = DROPPED
        finally:
            if flow.processors:
                frame.unpersist()
        _refuse_unfinished(flow.destination, result)
        done = [message for message in some if message.message_id in out]
        outcome = DeliveryOutcome("", state, result, 1)
        self._record(entry_of(message.entry(flow.name, FAILED), outcome) for message in done)
        filtered = self._account(flow.name, flow.processors, some, out, FILTERED)
        return Counter({state: len(done), FILTERED: filtered})

    # -- who is who --------------------------------------------------------------------------------------------

    def _waiting(self, flow: str, processed: DataFrame) -> tuple[list[LeasedMessage], Counter[str], dict[str, Entry]]:
        """What is to be delivered, in order of id; what is not, by its state; and what the ledger has about them."""
        rows = processed.select("table_id", "sequence", "id").toArrow().to_pylist()
        # What a process left long ago may name messages that another run holds by now.
        held = {message.ref: message for message in self.batch.messages()}
        refs = [MessageRef.of(*row.values()) for row in rows]
        found = [held[ref] for ref in refs if ref in held]
        known = self._known(found, flow, done=True)
        waiting, total = [], Counter[str]()
        for message in found:
            entry = known.get(message.message_id)
            if entry is not None and is_over(entry, self.fence):
                total[SKIPPED if entry.done else entry.state] += 1
            else:
                waiting.append(message)
        return sorted(waiting, key=lambda message: message.message_id), total, known

    def _known(self, leased: Sequence[LeasedMessage], flow: str, *, done: bool = False) -> dict[str, Entry]:
        """What the ledger has about these messages in this flow; without `done`, only what failed."""
        entries = self.ledger.known([message.message_id for message in leased])
        found = {message.message_id: entries.get(message.ref, {}).get(flow) for message in leased}
        return {key: entry for key, entry in found.items() if entry is not None and (done or not entry.done)}

    def _only(self, processed: DataFrame, waiting: Sequence[LeasedMessage]) -> DataFrame:
        ids = self.spark.createDataFrame(
            pa.table({"id": pa.array([message.message_id for message in waiting], pa.string())})
        )
        return processed.join(F.broadcast(ids), "id", "left_semi").select(*processed.columns)

    # -- who is to blame ---------------------------------------------------------------------------------------

    def _bisection(
        self,
        call: Callable[[Sequence[LeasedMessage]], None],
        give_up: Callable[[LeasedMessage, Exception], None],
        known: Mapping[str, Entry],
    ) -> Bisection[LeasedMessage]:
        """`known` is what the ledger has about some of the messages in this flow, none of which is done."""
        return Bisection(call, give_up, self._is_fault, lambda message: message.message_id in known)

    def _tell_untried(self, number: int) -> None:
        """They are settled as messages that were not reached: released, and the next run takes them."""
        if number:
            log.warning("batch %s: %d messages were not tried, because too many fail", self.batch.run_id, number)

    # -- crashes -----------------------------------------------------------------------------------------------

    def _is_fault(self, error: Exception) -> bool:
        """Whether it is worth looking for who is to blame: without Spark, everything fails."""
        try:
            self.spark.conf.get("spark.app.name")
        except Exception:  # noqa: BLE001 - of many kinds, when Spark's own process is gone
            return False
        return is_fault(error)

    def _take_in_hand(self, flow: str, some: Sequence[LeasedMessage], *, rows: bool) -> None:
        """Names these messages, should what comes next kill the driver. Raises when the step was taken over."""
        alone = len(some) == 1
        self.ledger.suspect(
            self.fence,
            crash_tracking.name_message(some[0].entry(flow, FAILED))
            if alone
            else crash_tracking.name_span(_span(some, rows=rows)),
        )

    def _parts(self, waiting: Sequence[LeasedMessage], *, rows: bool) -> Iterable[Sequence[LeasedMessage]]:
        """All messages at once; after a crash, those that may have caused it in small parts, apart from the others.
        They are in order of their rows' ids, or of their own."""
        most = max((message.crashes for message in waiting), default=0)
        span = crash_tracking.span_of(self.fence) or (
            _span([message for message in waiting if message.crashes == most], rows=rows) if most else None
        )
        places = [
            place
            for place, message in enumerate(waiting)
            if span is not None and span.covers(message.row_id, message.message_id)
        ]
        if not places:
            return [waiting]
        first, stop = places[0], places[-1] + 1
        size = -(-(stop - first) // _PARTS)
        small = [waiting[place : min(place + size, stop)] for place in range(first, stop, size)]
        return [*small, waiting[:first], waiting[stop:]]

    # -- the ledger --------------------------------------------------------------------------------------------

    def _account(
        self, flow: str, handlers: Sequence[Handler], some: Sequence[LeasedMessage], out: Mapping[str, int], state: str
    ) -> int:
        """Records as left out by a rule the messages that did not come out and are not recorded. Returns how many."""
        missing = [message for message in some if message.message_id not in out]
        known = self._known(missing, flow, done=True)
        left = [message for message in missing if not self._told(known.get(message.message_id))]
        reason = f"left out by {_names(handlers)}"
        self._record(message.entry(flow, state, result=reason) for message in left)
        return len(left)

    def _told(self, entry: Entry | None) -> bool:
        if entry is None:
            return False
        # What failed once is recorded as processed by what comes before a DataFrame handler: that is not its end.
        return entry.state != PROCESSED and (entry.done or entry.run_id == self.fence.run_id)

    def _give_up(self, flow: str, handlers: Sequence[Handler], message: LeasedMessage, error: Exception) -> None:
        name = error.handler if isinstance(error, HandlerError) else _names(handlers)
        if flow != SOURCE_FLOW and any(name == handler.name for handler in handlers if handler.kind in PROCESSORS):
            name = name_processor(name, flow)
        log.warning("message %s makes %s fail: %s", message.message_id, name, sign_of(error))
        reason = worker_crash(name) if is_crash(error) else describe(error, name, 1)
        self._record([message.entry(flow, FAILED, error=reason)])

    def _record(self, entries: Iterable[Entry]) -> None:
        rows = list(entries)
        for start in range(0, len(rows), _CHUNK):
            self.ledger.record(self.fence, rows[start : start + _CHUNK])


def _span(some: Sequence[LeasedMessage], *, rows: bool) -> crash_tracking.Span:
    first, last = some[0], some[-1]
    if rows:
        return crash_tracking.Span(first.row_id, last.row_id)
    return crash_tracking.Span(first.message_id, last.message_id, rows=False)


def _slices(waiting: Sequence[LeasedMessage], rate: float | None) -> Iterator[Sequence[LeasedMessage]]:
    """These messages; with a `rate`, those of a second at a time, and each slice when its turn comes."""
    if rate is None:
        yield from [waiting] if waiting else []
        return
    pace = RateLimiter(rate)
    size = max(1, int(rate))
    for first in range(0, len(waiting), size):
        part = waiting[first : first + size]
        pace.wait(len(part))
        yield part


def _ids(frame: DataFrame) -> Counter[str]:
    return Counter(frame.select("id").toArrow().column("id").to_pylist())


def _refuse_twice(out: Mapping[str, int]) -> None:
    twice = next((message_id for message_id, times in out.items() if times > 1), None)
    if twice is not None:
        raise HandlerError(f"a DataFrame handler returned message {twice} more than once: a filter returns a part")


def _refuse_unfinished(destination: Handler, returned: object) -> None:
    fault = find_return_fault(returned)
    if fault is not None:
        name = destination.name
        raise HandlerError(f"destination {name!r} failed: {text_of(fault)}", name) from fault


def _names(handlers: Sequence[Handler]) -> str:
    return " or ".join(handler.name for handler in handlers if handler.dataframe)
