"""The story of every message: who had it in hand and how that ended, written down by those who do it.

A process that is killed while it writes may leave the beginning of a line: that is not read, as if it had been killed
before. Times are those of the machine's monotonic clock, which all processes share and nobody sets.
"""

from __future__ import annotations

import json
import os
import time
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import NamedTuple

BEGAN, TOOK, FAILED, DROPPED, PASSED = "began", "took", "failed", "dropped", "passed"
#: Told of a message that the job still has: a DataFrame destination gets it next, which handles many at once.
KEPT = "kept"

# So long after its end a message may still be on the way into the ledger, or to its store, of whoever handled it.
_RECORDED_AFTER = 2.0


class Event(NamedTuple):
    """Something that a process did with a message. `detail` is the type of the error, or how the destination was.

    `offset` is by how much the process's clock is ahead of the monotonic one.
    """

    at: float
    offset: float
    pid: int
    what: str
    message_id: str
    flow: str = ""
    detail: str = ""


class Interruption(NamedTuple):
    """A harm that was done to these processes, or to all when none is named."""

    began: float
    ended: float
    pids: tuple[int, ...]
    harm: str

    def hits(self, pid: int) -> bool:
        return not self.pids or pid in self.pids


class Storybook:
    """Where the story of a run is written. Made anew by every process."""

    def __init__(self, folder: Path) -> None:
        self._events, self._interruptions = folder / "story", folder / "interruptions"

    def tell(self, what: str, message_id: str, flow: str = "", detail: str = "") -> None:
        now = time.monotonic()
        append(self._events, json.dumps([now, time.time() - now, os.getpid(), what, message_id, flow, detail]))

    def interrupt(self, began: float, pids: Iterable[int], harm: str) -> None:
        """Notes a harm that ends now. Without pids it befell everybody."""
        append(self._interruptions, json.dumps([began, time.monotonic(), list(pids), harm]))

    def is_growing(self, seconds: float) -> bool:
        """Whether something happened within the last seconds."""
        return self._events.exists() and time.time() - self._events.stat().st_mtime < seconds

    def events(self) -> list[Event]:
        return [Event(*json.loads(line)) for line in lines(self._events)]

    def read(self) -> Story:
        kept = [json.loads(line) for line in lines(self._interruptions)]
        return Story(self.events(), [Interruption(began, end, tuple(pids), harm) for began, end, pids, harm in kept])


class Story:
    """What happened, message by message."""

    def __init__(self, events: Iterable[Event], interruptions: Collection[Interruption]) -> None:
        self._of: dict[str, list[Event]] = defaultdict(list)
        self._beginnings: dict[int, list[float]] = defaultdict(list)
        self._ends: dict[tuple[int, str], list[float]] = defaultdict(list)
        for event in sorted(events):
            self._of[event.message_id].append(event)
            if event.what == BEGAN:
                self._beginnings[event.pid].append(event.at)
            elif event.what in (TOOK, FAILED, DROPPED, PASSED):
                self._ends[event.pid, event.message_id].append(event.at)
        self._interruptions = interruptions

    def delivered(self) -> Counter[str]:
        """How often each "<id> <flow>" was taken, with what was wrong about it."""
        return Counter(
            f"{event.message_id} {event.flow}{event.detail}"
            for events in self._of.values()
            for event in events
            if event.what == TOOK
        )

    def dropped(self) -> set[str]:
        return {one for one, events in self._of.items() if any(event.what == DROPPED for event in events)}

    def failures(self, message_id: str, flow: str | None = None) -> Counter[str]:
        """How often handling it failed, by the type of the error."""
        return Counter(
            event.detail
            for event in self._of.get(message_id, ())
            if event.what == FAILED and flow in (None, event.flow)
        )

    def failed_passes(self, message_id: str) -> int:
        """In how many passes it failed at least: a pass tries every destination that is not done once."""
        flows = {event.flow for event in self._of.get(message_id, ())}
        return max((self.failures(message_id, flow).total() for flow in flows), default=0)

    def interrupted(self, message_id: str) -> int:
        """How often a harm befell a process while it had this very message in hand."""
        events = self._of.get(message_id, [])
        held = [self._held(event) for event in events if event.what == BEGAN]
        later = [event.at for event in events[1:]] + [float("inf")]
        held += [(one.pid, one.at, next_at) for one, next_at in zip(events, later, strict=False) if one.what == KEPT]
        return sum(
            1
            for each in self._interruptions
            if any(each.hits(pid) and began <= each.ended and each.began <= ended for pid, began, ended in held)
        )

    def told(self, message_id: str) -> str:
        """The whole story in one line, for people: what was done with it and when, in seconds of the machine."""
        return ", ".join(
            f"{event.at:.1f} {event.what} {event.flow} {event.detail}".rstrip() + f" by {event.pid}"
            for event in self._of.get(message_id, ())
        )

    def _held(self, began: Event) -> tuple[int, float, float]:
        """From when to when its process had a message in hand that it began with then."""
        following = self._beginnings[began.pid]
        place = bisect_right(following, began.at)
        next_one = following[place] if place < len(following) else float("inf")
        ends = self._ends[began.pid, began.message_id]
        place = bisect_right(ends, began.at)
        done = ends[place] + _RECORDED_AFTER if place < len(ends) else float("inf")
        return began.pid, began.at, max(min(next_one, done), began.at)


_WHOLE = ";"  # ends a line that was written to its end


def append(path: Path, line: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, f"\n{line}{_WHOLE}\n".encode())  # the first break ends what a killed process has begun
    finally:
        os.close(descriptor)


def lines(path: Path) -> list[str]:
    kept = path.read_text().splitlines() if path.exists() else []
    return [line.removesuffix(_WHOLE) for line in kept if line.endswith(_WHOLE)]
