"""Crash tracking: before a step works on something, it notes in the ledger what that is, in case its process dies.

What is noted is called the suspect. It is one message; or, for a DataFrame handler, a part of the batch, from one id to
another. What people read of a crash is in `homing.failure`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from homing.errors import HomingError
from homing.failure import WORKER_CRASH, worker_crash
from homing.invocation.interrupts import is_user_interrupt
from homing.ledger import FAILED, Entry, Fence, Ledger
from homing.message import JSON, MessageRef, decode, encode_json

# A process that raises one of these has not crashed: it is alive, and says why it ends.
_SAID = (Exception, KeyboardInterrupt, SystemExit)


# How many values `name_message` writes. What has another number of them was written by another program.
_NAMED = len(MessageRef._fields) + 2


class Span(NamedTuple):
    """The messages of a batch from the id `first` to the id `last`, both included; to its end if `last` is None.

    With `rows`, these are ids of rows, and otherwise the messages' own.
    """

    first: str = ""
    last: str | None = None
    rows: bool = True

    def covers(self, row_id: str, message_id: str) -> bool:
        one = row_id if self.rows else message_id
        return self.first <= one and (self.last is None or one <= self.last)


def name_message(entry: Entry) -> str:
    """Returns the text that names a single message as the suspect.

    `entry` is what is recorded of the message if the process dies.
    """
    return encode_json([*entry.ref, entry.flow, entry.batch_id])


def name_span(span: Span) -> str:
    """Returns the text that names a part of a batch as the suspect."""
    return encode_json(span._asdict())


def span_of(fence: Fence) -> Span | None:
    """Returns the part of the batch that was being worked on; None if it was a single message, or is not known."""
    named = None if fence.suspect is None else decode(JSON, fence.suspect)
    return Span(**named) if isinstance(named, dict) else None


def record_crash(ledger: Ledger, fence: Fence) -> str | None:
    """Records as failed the message that was being worked on, and returns its id.

    Records nothing and returns None if a part of the batch was being worked on, or it is not known what.
    """
    named = None if fence.suspect is None else decode(JSON, fence.suspect)
    if not isinstance(named, list) or len(named) != _NAMED:
        return None
    *who, flow, batch_id = named
    ref = MessageRef(*who)
    ledger.record(fence, [Entry(ref, flow, FAILED, batch_id=batch_id, error=worker_crash(fence.step))])
    return ref.id


@contextmanager
def closing_step(
    ledger: Ledger, fence: Fence, *, is_death: Callable[[BaseException], bool] = lambda _: False
) -> Iterator[None]:
    """Closes the step at the end of the block.

    Also when an exception ends the block: that is not a crash, and no message is to blame. Only if `is_death` says that
    the exception reports the death of another process, the step stays open.
    """
    try:
        yield
    except BaseException as error:
        if (isinstance(error, _SAID) or is_user_interrupt(error)) and not is_death(error):
            with suppress(HomingError):
                ledger.close_step(fence)
        raise
    ledger.close_step(fence)


def died_in_this_run(entry: Entry | None, fence: Fence) -> bool:
    """Whether a worker of this same run died of the message. The run then leaves the message to its replay."""
    if entry is None or entry.error is None:
        return False
    return bool(entry.error["type"] == WORKER_CRASH and entry.run_id == fence.run_id)
