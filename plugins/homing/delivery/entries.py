"""Makes the ledger's entries about messages, and says which messages need nothing more by what the ledger knows."""

from __future__ import annotations

from homing.delivery.crash_tracking import died_in_this_run
from homing.errors import ContentError
from homing.failure import as_json
from homing.invocation.error_info import describe
from homing.ledger import FAILED, PROCESSED, Entry, Fence
from homing.pipeline.outcome import DeliveryOutcome, describe_failure


def entry_of(about: Entry, outcome: DeliveryOutcome) -> Entry:
    """Returns the entry that says how a message ended in a flow. `about` is the entry to record if it fails there."""
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
    """Returns the entry that says that a message cannot be read."""
    return about._replace(state=FAILED, error=describe(error, "read", 1))


def is_over(before: Entry | None, fence: Fence) -> bool:
    """Whether this run has nothing left to do for a message in a flow.

    That is so if the message is done there, or if a worker of this run died of it: then it is left to the replay. A
    source flow that went well is not over, as it is run again for the destinations that are not done.
    """
    return before is not None and ((before.done and before.state != PROCESSED) or died_in_this_run(before, fence))
