"""What the ledger is told of a message, and what is not done again because of what it knows."""

from __future__ import annotations

from homing.delivery.crash_tracking import died_in_this_run
from homing.errors import ContentError
from homing.failure import as_json
from homing.invocation.error_info import describe
from homing.ledger import FAILED, PROCESSED, Entry, Fence
from homing.pipeline.outcome import DeliveryOutcome, describe_failure


def entry_of(about: Entry, outcome: DeliveryOutcome) -> Entry:
    """How a message ended in a flow. `about` is what is recorded of it there, should it fail."""
    error = outcome.error
    if error is not None:
        return about._replace(attempts=error.attempts, error=describe_failure(error), snapshot=error.snapshot)
    return about._replace(
        state=outcome.state,
        destination=outcome.destination,
        attempts=outcome.attempts,
        result=as_json(outcome.result),
    )


def unreadable(about: Entry, error: ContentError) -> Entry:
    """That a message cannot be read."""
    return about._replace(state=FAILED, error=describe(error, "read", 1))


def is_over(before: Entry | None, fence: Fence) -> bool:
    """Whether nothing is left to do for a message in a flow: it is done, or a worker of this very run died of it, and
    it is left to the replay. A source flow that went well is run again for the destinations that are not done."""
    return before is not None and ((before.done and before.state != PROCESSED) or died_in_this_run(before, fence))
