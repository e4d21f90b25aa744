"""Time, threads and chance as the product's modules see them in a simulation: the hub's, and the schedule's.

The product is not changed for it: the names `time`, `threading` and the like in its modules are.
"""

from __future__ import annotations

import concurrent.futures
import random
import secrets
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any

import pytest

from homing import ids
from homing.pipeline.workers import Workers
from tests.simulation.hub import NANOSECONDS, Clock, Hub, Strand

_FAR = 10**9  # seconds: nobody waits for ever


class Here:
    """Where the stand-ins find the hub of the schedule that is carried out now; none while none is."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.hub: Hub | None = None
        self.rng = random.Random(0)  # noqa: S311

    def strand(self) -> Strand | None:
        return self.hub.current if self.hub else None

    def pause(self, what: str) -> str:
        """A point at which others may come first, if this is in a process at all."""
        return self.hub.pause(what) if self.hub and self.hub.current else "go"

    def wait(self, seconds: float | None, ready: Callable[[], bool] | None = None) -> None:
        if self.strand() is None or self.hub is None:
            self.clock.advance(seconds or 0)
        else:
            seconds = _FAR if seconds is None and ready is None else seconds
            self.hub.wait(None if seconds is None else self.clock.now + int(seconds * NANOSECONDS), ready)


class Time:
    """The module `time`."""

    def __init__(self, here: Here) -> None:
        self._here = here

    def time_ns(self) -> int:
        return self._here.clock.now

    def time(self) -> float:
        return self._here.clock.now / NANOSECONDS

    def sleep(self, seconds: float) -> None:
        self._here.wait(seconds)

    monotonic = perf_counter = time
    monotonic_ns = time_ns


class Threading:
    """The module `threading`, as far as it is used. A lock is one per process: they share objects here that they would
    each have made for themselves."""

    def __init__(self, here: Here) -> None:
        self._here = here

    def __getattr__(self, name: str) -> Any:
        return getattr(threading, name)

    def Thread(self, **settings: Any) -> Thread:  # noqa: N802 - the module's names
        return Thread(self._here, **settings)

    def Event(self) -> Event:  # noqa: N802
        return Event(self._here)

    def Lock(self) -> Lock:  # noqa: N802
        return Lock(self._here)

    RLock = Lock


class Thread:
    def __init__(self, here: Here, *, target: Callable[..., Any], args: tuple[Any, ...] = (), **_: Any) -> None:
        self._here, self._work = here, lambda: target(*args)
        self._strand: Strand | None = None

    def start(self) -> None:
        strand = self._here.strand()
        assert strand is not None
        assert self._here.hub is not None
        self._strand = self._here.hub.start(strand.process, self._work)

    def join(self, timeout: float | None = None) -> None:
        started = self._strand
        if started is not None and not started.ended:
            self._here.wait(timeout, lambda: started.ended)

    def is_alive(self) -> bool:
        return self._strand is not None and not self._strand.ended


class Event:
    def __init__(self, here: Here) -> None:
        self._here, self._set = here, False

    def set(self) -> None:
        self._set = True

    def clear(self) -> None:
        self._set = False

    def is_set(self) -> bool:
        return self._set

    def wait(self, timeout: float | None = None) -> bool:
        if not self._set:
            self._here.wait(timeout, self.is_set)
        return self._set


class Lock:
    """May be taken again by the strand that has it."""

    def __init__(self, here: Here) -> None:
        self._here = here
        self._owners: dict[Any, tuple[Any, int]] = {}

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        strand = self._here.strand()
        process = strand.process if strand else None
        while (owner := self._owners.get(process)) is not None and owner[0] is not strand:
            if not blocking:
                return False
            self._here.wait(None, lambda: process not in self._owners)
        self._owners[process] = (strand, (owner[1] if owner else 0) + 1)
        return True

    def release(self) -> None:
        strand = self._here.strand()
        process = strand.process if strand else None
        _, times = self._owners[process]
        if times > 1:
            self._owners[process] = (strand, times - 1)
        else:
            del self._owners[process]

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class Pool:
    """A ThreadPoolExecutor of which each thread waits for the one before it."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def submit(self, work: Callable[..., Any], *args: Any) -> None:
        work(*args)

    def map(self, work: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        return map(work, items)

    def shutdown(self, **_: Any) -> None:
        pass

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def install(patch: pytest.MonkeyPatch, here: Here) -> None:
    """Puts the stand-ins in the place of the real ones, in every module of the product that is loaded."""
    stand_in = Threading(here)
    instead: list[tuple[Any, Any]] = [
        (time, Time(here)),
        (threading, stand_in),
        (threading.Lock, stand_in.Lock),
        (threading.RLock, stand_in.Lock),
        (threading.Event, stand_in.Event),
        (threading.Thread, stand_in.Thread),
        (concurrent.futures.ThreadPoolExecutor, Pool),
        (uuid.uuid4, lambda: uuid.UUID(int=here.rng.getrandbits(128), version=4)),
    ]
    replace(patch, instead)
    # As in a Pool, each call waits for the one before it.
    patch.setattr(Workers, "run_all", lambda _, calls: [call() for call in calls])
    patch.setattr(uuid, "uuid4", instead[-1][1])
    patch.setattr(ids, "_random", here.rng)
    patch.setattr(secrets, "token_hex", lambda size=16: f"{here.rng.getrandbits(8 * size):0{2 * size}x}")


def replace(patch: pytest.MonkeyPatch, instead: list[tuple[Any, Any]]) -> None:
    """In every loaded module of the product, each of these by the other."""
    found = {id(old): new for old, new in instead}
    for name, module in list(sys.modules.items()):
        if isinstance(module, ModuleType) and (name == "homing" or name.startswith("homing.")):
            for attribute, value in list(vars(module).items()):
                if id(value) in found:
                    patch.setattr(module, attribute, found[id(value)])
