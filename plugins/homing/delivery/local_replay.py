"""Replaying in this process, without Spark: what a batch holds goes through its chain, some messages at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace

from homing.delivery import crash_tracking, records
from homing.delivery.batch import Batch
from homing.delivery.lease_keeper import LeaseKeeper
from homing.delivery.leased_part import Row, weight_of
from homing.delivery.recorder import Recorder
from homing.delivery.settlement import DEFAULT_LEASE
from homing.delivery.step import SKIPPED, FlowRun, ProcessorRun, Step
from homing.delivery.stores import PipelineStores
from homing.ledger import SOURCE_FLOW, Entry
from homing.pipeline import HandlerChain, MessageContext
from homing.portions import MOST_BYTES, portions

# How many messages are on their way to their destinations at the same time, and what they weigh: each is there as its
# row and as what the source flow made of it.
_AT_ONCE, _MOST_BYTES = 100, MOST_BYTES // 4


def replay_in_process(
    stores: PipelineStores,
    batch: Batch,
    chain: HandlerChain,
    *,
    rate: float | None = None,
    lease: float = DEFAULT_LEASE,
) -> Counter[str]:
    """Replays what the batch holds, recording each delivery as it is made. Returns how many entries have each state.

    With a `rate`, each destination gets at most so many messages a second. The batch and the right to record are held
    for `lease` seconds at a time, and renewed however long a message takes or waits for its turn. Neither acknowledges
    nor dead-letters: that is `batch.finish_replay()`. Raises LeaseLostError when another process took the batch over
    meanwhile. Before any message has run, raises ChainError for a chain with handlers that take DataFrames, and
    MissingConnectionError where a connection is not there that a handler declares.
    """
    chain.refuse_dataframes()
    chain.require_connections()
    fence = stores.ledger.open_step(batch.run_id, "replay", lease)
    crash_tracking.record_crash(stores.ledger, fence)
    fence = replace(fence, crashed=fence.crashed or batch.crashed_before())
    # If this process dies, the one delivery at most that each destination has in hand is made again.
    step = Step(chain, stores.ledger, fence, rate=rate or None, chunk=1)
    recorder = step.recorder()
    with (
        crash_tracking.closing_step(stores.ledger, fence),
        LeaseKeeper(batch, stores.ledger, fence, lease, recorder.stop),
    ):
        ended = sum(replay_batch(step, batch, recorder).values(), Counter[str]())
    del ended[SKIPPED]
    return ended


def replay_batch(step: Step, batch: Batch, recorder: Recorder) -> dict[str, Counter[str]]:
    """Runs the source flow over what the batch holds, and delivers to all destinations at the same time.

    After a crash, delivers one message at a time. Returns for each flow how many messages ended in each state.
    """
    flows = step.chain.flows
    states: dict[str, list[str]] = {SOURCE_FLOW: [], **{flow.name: [] for flow in flows}}
    with recorder, step.workers() as workers:
        source = ProcessorRun(step, step.chain.source, recorder, states=states[SOURCE_FLOW])
        runs = [FlowRun(step, flow, _as_it_is, recorder, workers) for flow in flows]
        # What is slowed down is run when its turn comes, and not long before.
        most = _AT_ONCE if step.rate is None else min(_AT_ONCE, max(1, int(step.rate)))
        for portion in portions(_processed(step, batch, source, most), _weight, most=most, most_bytes=_MOST_BYTES):
            recorder.rest()
            backlogs = [run.backlog(_meant_for(run.flow.name, portion), states[run.flow.name]) for run in runs]
            # After a crash one after the other: of all that is in hand, nothing but what is named may be to blame.
            for together in [[one] for one in backlogs] if recorder.careful else [backlogs]:
                workers.work_off(together)
    return {flow: Counter(ended) for flow, ended in states.items()}


Processed = tuple[MessageContext, Entry, dict[str, Entry]]


def _processed(step: Step, batch: Batch, source: ProcessorRun, most: int) -> Iterator[Processed]:
    """Yields the messages after the source flow, each with the entry to record if it fails, and with what the ledger
    has of it."""
    for rows in portions(_rows(batch), lambda each: weight_of(each[0]), most=most, most_bytes=_MOST_BYTES):
        entries = [records.about(row, copies=copies) for row, copies in rows]
        known = step.ledger.known([about.ref.id for about in entries])
        for each, about in zip(rows, entries, strict=True):
            context = source.run(_begin, each, about, known)
            if context is not None:
                yield context, about, known.get(about.ref, {})


def _meant_for(flow: str, portion: Iterable[Processed]) -> Iterator[tuple[MessageContext, Entry, Entry | None]]:
    return ((context, about._replace(flow=flow), known.get(flow)) for context, about, known in portion)


def _rows(batch: Batch) -> Iterator[tuple[Row, bool]]:
    return ((row, held.copies) for held in batch.held() for row in held.store.batch_rows(held.lease))


def _begin(each: tuple[Row, bool]) -> MessageContext:
    """The message a chain starts from. Raises UnreadableMessageError."""
    row, copies = each
    origin = records.origin_of(row, copies=copies)
    return MessageContext(origin.message, origin.properties)


def _as_it_is(context: MessageContext) -> MessageContext:
    return context


def _weight(processed: Processed) -> int:
    """What the source flow made of a message may be more than there was."""
    return len(processed[0].write_down()[0].body)
