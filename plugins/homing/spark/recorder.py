"""Recorder: an executor's pen for the ledger."""

from __future__ import annotations

import threading
import time
from types import TracebackType

from homing.errors import HomingError
from homing.ledger import Entry, Fence, Ledger
from homing.message import encode_json

#: A crash costs at most this many deliveries being made again, per running task.
CHUNK = 100
#: Nor does a slow destination keep a delivery unrecorded for longer than this.
SECONDS = 0.5


class Recorder:
    """Writes entries in small chunks soon after each delivery, and the rest at the end of the block.

    Raises LeaseLostError when the step was taken over: the caller must stop delivering. After a crash of the step, each
    message is named in the ledger before it is handled, so that whoever comes after the next crash knows it.
    """

    def __init__(self, ledger: Ledger, fence: Fence) -> None:
        self._ledger = ledger
        self._fence = fence
        self._careful = fence.crashed
        self._pending: list[Entry] = []
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._error: HomingError | None = None
        self._thread = threading.Thread(target=self._flush_now_and_then, name="homing-recorder", daemon=True)

    def begin(self, entry: Entry) -> None:
        """Says, after a crash, which message is in hand: `entry` is what to record should the worker die of it."""
        if self._careful:
            suspect = [entry.message_id, entry.flow, entry.batch_id, entry.life]
            self._ledger.suspect(self._fence, encode_json(suspect))

    def add(self, entry: Entry) -> None:
        if self._error is not None:
            raise self._error
        entry = entry._replace(at=time.time_ns())
        with self._lock:
            self._pending.append(entry)
            full = len(self._pending) >= CHUNK
        if self._careful:
            self._flush(suspect=True)
        elif full:
            self._flush()

    def __enter__(self) -> Recorder:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        # Also on the way out of an error: what was delivered was delivered. And with nothing to record, too: a task
        # that was given up long ago is to notice.
        self._flush(suspect=self._careful)

    def _flush(self, *, suspect: bool = False) -> None:
        with self._lock:
            if suspect:
                self._ledger.suspect(self._fence, None, self._pending)
            else:
                self._ledger.record(self._fence, self._pending)
            self._pending = []

    def _flush_now_and_then(self) -> None:
        while not self._ended.wait(SECONDS):
            try:
                if self._pending:
                    self._flush()
            except HomingError as error:
                self._error = error  # raised where deliveries are made
                return
