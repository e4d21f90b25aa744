"""Step: one step of a run in one process, which puts messages through processors and delivers them to destinations.

A message's failure is a ledger entry, never an exception: the rest of the batch moves on. Exceptions that do leave a
step are about the infrastructure, such as a database that is away or a lease that was lost.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from homing.delivery.batch import Batch
from homing.delivery.entries import entry_of, is_over, unreadable
from homing.delivery.recorder import Part, Recorder
from homing.errors import ContentError
from homing.invocation.rate_limit import RateLimiter
from homing.ledger import DROPPED, FAILED, PROCESSED, SOURCE_FLOW, Entry, Fence, Ledger, LedgerEntries
from homing.message import MessageRef
from homing.pipeline import Flow, HandlerChain, MessageContext, SourceFlow
from homing.pipeline.outcome import DeliveryOutcome
from homing.pipeline.runner import run_flow, run_source
from homing.pipeline.workers import Backlog, Workers

log = logging.getLogger(__name__)

#: What is counted of a message that a destination has already.
SKIPPED = "skipped"

# They are made as they are needed.
_MOST_THREADS = 1_000

Begin = Callable[[Any], MessageContext]


@dataclass(frozen=True)
class Step:
    """The chain that is run, and the right to record in the ledger for one step of a run: the `fence`.

    If `fence.crashed`, messages are handled one at a time, and each is named in the ledger before.
    """

    chain: HandlerChain
    ledger: Ledger
    fence: Fence
    #: The messages the run holds; None for all that are read.
    held: frozenset[MessageRef] | None = None
    #: The most messages a second that each destination gets, for a replay in a single process; None for no limit.
    rate: float | None = None
    #: How many entries wait until they are recorded together; None for as many as the recorder finds good.
    chunk: int | None = None

    def recorder(self, part: Part | None = None) -> Recorder:
        return Recorder(self.ledger, self.fence, part, chunk=self.chunk)

    def workers(self) -> Workers:
        """Returns the threads for the chain's destinations; each destination says how many it wants."""
        return Workers(self.chain.name, _MOST_THREADS)

    def flow(self, name: str) -> Flow:
        return next(flow for flow in self.chain.flows if flow.name == name)


@dataclass(frozen=True)
class ProcessorRun:
    """Runs processors of one flow. For each message that a processor drops or fails on, it records that."""

    step: Step
    processors: SourceFlow
    recorder: Recorder
    #: What is recorded of a message that a processor leaves out.
    left_out: str = DROPPED
    #: Whether the last of these processors is the last of the source flow. Only then is it recorded of a message that
    #: failed before that it does not fail any more.
    ends: bool = True
    #: The states that were recorded.
    states: list[str] = field(default_factory=list)

    def run(self, begin: Begin, row: Any, about: Entry, known: LedgerEntries) -> MessageContext | None:
        """Returns the message after these processors; None when a rule left it out, it failed, or it is not to be run.

        `about` is what is recorded of the row's message if it fails in this flow.
        """
        before = known.get(about.ref, {}).get(about.flow) if known else None
        if before is not None and is_over(before, self.step.fence):
            return None
        if self.recorder.careful:
            self.recorder.begin(about)
        try:
            context = begin(row)
        except ContentError as error:
            self._record(unreadable(about, error))
            return None
        outcome = run_source(self.processors, context, self.left_out)
        if outcome.state != PROCESSED:
            self._record(entry_of(about, outcome))
            return None
        if self.ends and before is not None and not before.done:
            self._record(about._replace(state=PROCESSED))
        return context

    def _record(self, entry: Entry) -> None:
        self.recorder.add(entry)
        self.states.append(entry.state)


class FlowRun:
    """Delivers messages to one destination flow.

    A destination may take several messages in one call, and may ask for several calls at the same time. The thread that
    made a delivery records it as soon as it knows how it ended.
    """

    def __init__(self, step: Step, flow: Flow, begin: Begin, recorder: Recorder, workers: Workers) -> None:
        self.flow = flow
        self._fence = step.fence
        self._begin = begin
        self._recorder = recorder
        self._workers = workers
        self._size, self._threads = (1, 1) if step.fence.crashed else (flow.batch, flow.threads)
        self._pace = None if step.rate is None else RateLimiter(step.rate, sleep=recorder.wait)

    def backlog(
        self, messages: Iterable[tuple[Any, Entry, Entry | None]], states: list[str]
    ) -> Backlog[Sequence[tuple[Any, Entry]]]:
        """Returns the work of delivering those of these messages that are not done yet.

        Each comes with the entry that is recorded if it fails, and with what the ledger has of it for this flow. The
        state in which each message ends is added to `states`.
        """
        waiting = []
        for row, about, before in messages:
            if before is not None and is_over(before, self._fence):
                states.append(SKIPPED if before.done else before.state)
            else:
                waiting.append((row, about))
        chunks = (waiting[first : first + self._size] for first in range(0, len(waiting), self._size))
        return Backlog(partial(self._deliver, states), chunks, threads=self._threads)

    def _deliver(self, states: list[str], messages: Sequence[tuple[Any, Entry]]) -> None:
        about, contexts = list[Entry](), list[MessageContext]()

        def tell(place: int, outcome: DeliveryOutcome) -> None:
            entry = entry_of(about[place], outcome)
            self._recorder.add(entry)
            states.append(entry.state)

        for row, entry in messages:
            if self._pace is not None:
                self._pace.wait()
            try:
                contexts.append(self._begin(row))
                about.append(entry)
            except ContentError as error:  # a DataFrame handler may write invalid JSON
                self._recorder.add(unreadable(entry, error))
                states.append(FAILED)
        if about:
            self._recorder.begin(about[0])
            run_flow(self.flow, contexts, self._workers, tell)


def flows_of(step: str) -> tuple[str, ...]:
    """The flows whose handlers a step may run, by its name in the ledger; none stands for all of them."""
    if step == "process":
        return (SOURCE_FLOW,)
    # Where nothing is left of the step before, a delivery runs the source flow again.
    return (SOURCE_FLOW, step.removeprefix("deliver.")) if step.startswith("deliver.") else ()


def log_result(batch: Batch, what: str, total: Counter[str] | None = None) -> None:
    """Logs the one line that says what a step did with its batch."""
    log.log(logging.WARNING if total and total[FAILED] else logging.INFO, "batch %s: %s", batch.run_id, what)


def log_deliveries(batch: Batch, flow: str, total: Counter[str]) -> None:
    """Logs the one line that says what was delivered to one destination.

    `total` is how many messages ended in each state.
    """
    log_result(batch, f"to {flow}: {dict(total) or 'nothing to deliver'}", total)
