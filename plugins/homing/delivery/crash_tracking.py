"""Crash tracking: what a step was working on when its process died, as noted in the ledger before.

A suspect is one message, which is then known to be the one, or a part of a batch from one row's id to another's, which
is what a DataFrame handler works on.
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

# A process that raises one of these is alive, and tells why it ends.
_SAID = (Exception, KeyboardInterrupt, SystemExit)


_NAMED = len(MessageRef._fields) + 2  # what names a single message; a version before named it otherwise


class Span(NamedTuple):
    """The messages of a batch from one id to another, both of them in it; to its end without a last one.

    The ids are those of the rows, or else the messages' own.
    """

    first: str = ""
    last: str | None = None
    rows: bool = True

    def covers(self, row_id: str, message_id: str) -> bool:
        one = row_id if self.rows else message_id
        return self.first <= one and (self.last is None or one <= self.last)


def name_message(entry: Entry) -> str:
    """Names a single message; `entry` is what to record should it kill."""
    return encode_json([*entry.ref, entry.flow, entry.batch_id])


def name_span(span: Span) -> str:
    """Names a part of a batch."""
    return encode_json(span._asdict())


def span_of(fence: Fence) -> Span | None:
    """The part that was being worked on; None if it was a single message, or is unknown."""
    named = None if fence.suspect is None else decode(JSON, fence.suspect)
    return Span(**named) if isinstance(named, dict) else None


def record_crash(ledger: Ledger, fence: Fence) -> str | None:
    """Records as failed the one message that was being worked on; its id, or None if there were several or none
    known."""
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
    """Closes the step at the end of the block, also when an exception ends it: that is not a crash, and no message is
    to blame, unless `is_death` recognises in it that another process has died."""
    try:
        yield
    except BaseException as error:
        if (isinstance(error, _SAID) or is_user_interrupt(error)) and not is_death(error):
            with suppress(HomingError):
                ledger.close_step(fence)
        raise
    ledger.close_step(fence)


def died_in_this_run(entry: Entry | None, fence: Fence) -> bool:
    """Whether a worker of this very run died of the message: then it is left to the replay."""
    if entry is None or entry.error is None:
        return False
    return bool(entry.error["type"] == WORKER_CRASH and entry.run_id == fence.run_id)
