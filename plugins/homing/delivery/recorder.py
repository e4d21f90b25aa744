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

#: After a crash at most this many deliveries are made again, for each task that was running.
ENTRIES_PER_FLUSH = 100
#: Seconds after which a delivery is recorded at the latest, also when the chunk is not full.
FLUSH_EVERY_SECONDS = 0.5
# Seconds: longer than any step. A copy of a task works on its part until another copy takes the part.
_ALWAYS = 10 * 365 * 86_400.0


class Part(Protocol):
    """The TaskContext of a Spark task: which task it is, and how often it was tried before."""

    def stageId(self) -> int: ...  # noqa: N802 - Spark's names
    def partitionId(self) -> int: ...  # noqa: N802
    def attemptNumber(self) -> int: ...  # noqa: N802


class Recorder:
    """Writes entries in small chunks soon after each delivery, and the rest at the end of the block. Thread-safe.

    Raises LeaseLostError when another process has taken the step over: the caller must stop delivering.

    After a crash of the step, each message is named in the ledger before it is handled. If the step crashes again, the
    next attempt knows which message did it. For this, only one message may be handled at a time.

    A chunk has `chunk` entries, or ENTRIES_PER_FLUSH if that is None. `part` is the Spark task that this process runs.
    If two copies of that task run at the same time, the one that began first records what it has delivered, and stops
    with LeaseLostError.
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
        """To be called before a message is handled. After a crash, it names the message in the ledger.

        `entry` is what is recorded of the message if the worker dies.
        """
        if self._error is not None:
            raise self._error
        if self.careful:
            self._ledger.suspect(self._fence, crash_tracking.name_message(entry))

    def rest(self) -> None:
        """To be called when no message is being handled. After a crash, it notes that in the ledger, so that no message
        is blamed if the worker dies now."""
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
        """Waits for so many seconds. Raises at once when nothing can be recorded any more."""
        self._broken.wait(seconds)
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Makes every later call raise LeaseLostError: the messages belong to another process by now."""
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
        # What still delivers, left behind after an interrupt, begins with nothing more: it would not be recorded.
        self._break(self._error or LeaseLostError(f"the step of batch {self._fence.run_id} has ended"))
        # Also after an error, because deliveries that were made must be recorded. Also with nothing to record: a task
        # that another process has taken over notices it here.
        self._flush(suspect=self.careful)

    def _take_turn(self, part: Part) -> None:
        name = f"{PART}{self._fence.owner}/{part.stageId()}/{part.partitionId()}"
        self._turn = self._ledger.open_step(self._fence.run_id, name, _ALWAYS)
        if part.attemptNumber():
            # Long enough for an earlier copy that still runs to notice, and to record what it has delivered.
            time.sleep(2 * FLUSH_EVERY_SECONDS)

    def _keep_turn(self) -> None:
        """Raises LeaseLostError when another process took the step over, or another copy of this task has begun.

        It asks even if there is nothing to record: so a process whose delivery hangs makes no other after it.
        """
        with suppress(StoreUnavailableError):  # if the database stays away, the next recording raises
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
