"""Recorder: buffers the ledger entries of a step and flushes them in chunks."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from types import TracebackType
from typing import Protocol

from homing.delivery import crash_tracking
from homing.errors import HomingError, LeaseLostError, StoreUnavailableError
from homing.excerpts import excerpt
from homing.ledger import PART, Entry, Fence, Ledger

#: A crash costs at most this many deliveries being made again, per running task.
ENTRIES_PER_FLUSH = 100
#: Nor does a slow destination keep a delivery unrecorded for longer than this.
FLUSH_EVERY_SECONDS = 0.5
# For as long as the step goes on: what counts is who took the part last.
_ALWAYS = 10 * 365 * 86_400.0


class Part(Protocol):
    """A task of Spark, which may be tried again, as its TaskContext tells."""

    def stageId(self) -> int: ...  # noqa: N802 - Spark's names
    def partitionId(self) -> int: ...  # noqa: N802
    def attemptNumber(self) -> int: ...  # noqa: N802


class Recorder:
    """Writes entries in small chunks soon after each delivery, and the rest at the end of the block.

    Raises LeaseLostError when the step was taken over: the caller must stop delivering. After a crash of the step, each
    message is named in the ledger before it is handled, so that the attempt after the next crash knows it. Thread-safe,
    but then one message at a time may be handled.

    A chunk has `chunk` entries; ENTRIES_PER_FLUSH without one. A `part` is the part of a batch that a Spark task works
    on. When two copies of that task run at the same time, the copy that began first records what it has delivered and
    stops with LeaseLostError.
    """

    def __init__(self, ledger: Ledger, fence: Fence, part: Part | None = None, *, chunk: int | None = None) -> None:
        self._ledger = ledger
        self._fence = fence
        self._part = part
        self._chunk = ENTRIES_PER_FLUSH if chunk is None else chunk
        self._turn: Fence | None = None
        #: Whether each message is to be named before it is handled.
        self.careful = fence.crashed
        self._pending: list[Entry] = []
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._broken = threading.Event()
        self._error: HomingError | None = None
        self._thread = threading.Thread(target=self._flush_now_and_then, name="homing-recorder", daemon=True)

    def begin(self, entry: Entry) -> None:
        """Before a message is handled. Says, after a crash, that it is in hand: `entry` is what to record should the
        worker die of it."""
        if self._error is not None:
            raise self._error
        if self.careful:
            self._ledger.suspect(self._fence, crash_tracking.name_message(entry))

    def rest(self) -> None:
        """Notes, after a crash, that no message is being handled: what happens now is the fault of none."""
        if self.careful:
            self._flush(suspect=True)

    def add(self, entry: Entry) -> None:
        entry = entry._replace(at=time.time_ns(), result=excerpt(entry.result))  # many wait to be recorded
        with self._lock:
            self._pending.append(entry)
            full = len(self._pending) >= self._chunk
        if self._error is not None:
            raise self._error  # what is pending is recorded on the way out
        if self.careful:
            self._flush(suspect=True)
        elif full:
            self._flush()

    def wait(self, seconds: float) -> None:
        """Returns after so many seconds. Raises, and at once, when nothing can be recorded any more."""
        self._broken.wait(seconds)
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Has whatever comes next raise: the messages belong to another process by now."""
        self._break(LeaseLostError(f"the lease of batch {self._fence.run_id} was lost"))

    def __enter__(self) -> Recorder:
        if self._part is not None:
            self._take_turn(self._part)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        # Also on the way out of an error: what was delivered was delivered. And with nothing to record, too: a task
        # that was given up long ago is to notice.
        self._flush(suspect=self.careful)

    def _take_turn(self, part: Part) -> None:
        name = f"{PART}{self._fence.owner}/{part.stageId()}/{part.partitionId()}"
        self._turn = self._ledger.open_step(self._fence.run_id, name, _ALWAYS)
        if part.attemptNumber():
            # A copy that still runs somewhere has noticed by then, and recorded what is not to be done again.
            time.sleep(2 * FLUSH_EVERY_SECONDS)

    def _keep_turn(self) -> None:
        """Raises LeaseLostError when the step was taken over, or another copy of this task has begun: also while a
        delivery hangs and nothing is there to be recorded, so that it is the last one."""
        with suppress(StoreUnavailableError):  # recording will tell, should it stay away
            for right in filter(None, (self._fence, self._turn)):
                self._ledger.record(right, [])

    def _flush(self, *, suspect: bool = False) -> None:
        with self._lock:
            if suspect:
                self._ledger.suspect(self._fence, None, self._pending)
            else:
                self._ledger.record(self._fence, self._pending)
            self._pending = []

    def _flush_now_and_then(self) -> None:
        while not self._ended.wait(FLUSH_EVERY_SECONDS):
            try:
                if self._pending:
                    self._flush()
                self._keep_turn()
            except HomingError as error:
                self._break(error)
                return

    def _break(self, error: HomingError) -> None:
        self._error = error  # raised where deliveries are made
        self._broken.set()
