"""Recorder: an executor's pen for the ledger."""

from __future__ import annotations

import time
from types import TracebackType

from homing.ledger import Entry, Fence, Ledger

#: A crash costs at most this many deliveries being made again, per running task.
CHUNK = 100
#: Nor does a slow destination keep a delivery unrecorded for longer than this.
SECONDS = 0.5


class Recorder:
    """Writes entries in small chunks soon after each delivery, and the rest at the end of the block.

    Raises LeaseLostError when the step was taken over: the caller must stop delivering. Not thread-safe.
    """

    def __init__(self, ledger: Ledger, fence: Fence) -> None:
        self._ledger = ledger
        self._fence = fence
        self._pending: list[Entry] = []
        self._since = 0.0

    def add(self, entry: Entry) -> None:
        if not self._pending:
            self._since = time.monotonic()
        self._pending.append(entry)
        if len(self._pending) >= CHUNK or time.monotonic() - self._since >= SECONDS:
            self.flush()

    def flush(self) -> None:
        self._ledger.record(self._fence, self._pending)
        self._pending = []

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Also on the way out of an error: what was delivered was delivered.
        self.flush()
