"""Replaying in this process, without Spark: what a batch holds goes through its chain, one message after the other."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator

from homing.delivery import crash_tracking, records
from homing.delivery.batch import Batch
from homing.delivery.lease_keeper import LeaseKeeper
from homing.delivery.leased_part import Row
from homing.delivery.settlement import DEFAULT_LEASE
from homing.delivery.stores import PipelineStores
from homing.errors import ContentError, HandlerError
from homing.failure import as_json
from homing.invocation.error_info import describe
from homing.invocation.rate_limit import RateLimiter
from homing.ledger import DROPPED, PROCESSED, SOURCE_FLOW, Entry, Fence
from homing.pipeline import Drop, HandlerChain, MessageContext


def replay_here(
    stores: PipelineStores,
    batch: Batch,
    chain: HandlerChain,
    *,
    rate: float | None = None,
    lease: float = DEFAULT_LEASE,
) -> Counter[str]:
    """Replays what the batch holds, recording each delivery as it is made; how many entries of each state.

    At most `rate` messages per second. The batch and the right to record are held for `lease` seconds at a time, and
    renewed however long a message takes or waits for its turn. Neither acknowledges nor dead-letters: that is
    `batch.finish_replay()`. Raises LeaseLostError when another process took the batch over meanwhile, and ChainError,
    before any message has run, for a chain with handlers that take DataFrames.
    """
    chain.refuse_dataframes()
    fence = stores.ledger.open_step(batch.run_id, "replay", lease)
    crash_tracking.blame(stores.ledger, fence)
    careful = fence.crashed or batch.crashed_before()
    tally: Counter[str] = Counter()
    lost, pace = threading.Event(), RateLimiter(rate) if rate else None
    with (
        crash_tracking.until_the_end(stores.ledger, fence),
        LeaseKeeper(batch, stores.ledger, fence, lease, lost.set),
    ):
        for row, copies in _rows(batch):
            if lost.wait(pace.reserve() if pace else 0.0):
                break  # the rest belongs to another process by now; the keeper raises it
            if careful:
                stores.ledger.suspect(fence, crash_tracking.one(records.about(row, copies=copies)))
            tally.update(_replay(stores, chain, row, copies, fence))
    return tally


def _rows(batch: Batch) -> Iterator[tuple[Row, bool]]:
    return ((row, held.copies) for held in batch.held() for row in held.store.batch_rows(held.lease))


def _replay(stores: PipelineStores, chain: HandlerChain, row: Row, copies: bool, fence: Fence) -> Iterator[str]:
    ref = records.about(row, copies=copies).ref
    known = stores.ledger.known([ref.id]).get(ref, {})
    if crash_tracking.gave_up(known.get(SOURCE_FLOW), fence):
        return
    for entry in _entries(chain, row, copies, known):
        # Right after the delivery: if this process dies now, that one delivery at most is made again.
        stores.ledger.record(fence, [entry])
        yield entry.state


def _entries(chain: HandlerChain, row: Row, copies: bool, known: dict[str, Entry]) -> Iterator[Entry]:
    """Runs the chain over one message; yields what is to be recorded, each as soon as it is known."""
    about = records.about(row, copies=copies)
    try:
        origin = records.origin_of(row, copies=copies)
        context = MessageContext(origin.message, dict(origin.properties))
        chain.run_source(context)
    except Drop as drop:
        yield about._replace(state=DROPPED, result=as_json(str(drop)))
        return
    except HandlerError as error:
        yield _failure(about, error)
        return
    except ContentError as error:
        yield about._replace(error=describe(error, "read", 1))
        return
    if SOURCE_FLOW in known and not known[SOURCE_FLOW].done:
        yield about._replace(state=PROCESSED)
    for flow in chain.flows:
        if flow.name in known and known[flow.name].done:
            continue
        here = about._replace(flow=flow.name)
        try:
            ended = flow.deliver(context)
        except HandlerError as error:
            yield _failure(here, error)
            continue
        yield here._replace(
            state=ended.state,
            destination=ended.destination,
            attempts=ended.attempts,
            result=as_json(ended.result),
        )


def _failure(about: Entry, error: HandlerError) -> Entry:
    reason = describe(error.__cause__ or error, error.handler, error.attempts)
    return about._replace(attempts=error.attempts, error=reason, snapshot=error.snapshot)
