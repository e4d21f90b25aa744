"""Forked processes for tests: what they do, how they end, and an end to those that hang."""

from __future__ import annotations

import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

LONGEST = 60  # seconds, for a process that is done in one


def fork(use: Callable[[], Any]) -> int:
    """A process that runs `use` and ends with 0 unless that raises or answers False; its pid."""
    child = os.fork()
    if child:
        return child
    signal.alarm(LONGEST)
    code = 1
    try:
        code = int(use() is False)
    except BaseException:  # noqa: BLE001 - whatever it is, the parent must learn of it
        traceback.print_exc()
    finally:
        os._exit(code)


def went_well(*children: int) -> bool:
    """Whether all of them ended with 0; one that hung was ended by its alarm."""
    return [os.waitpid(child, 0)[1] for child in children] == [0] * len(children)


@contextmanager
def held_by_a_thread(lock: Any) -> Iterator[None]:
    held, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            leave.wait(LONGEST)

    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    assert held.wait(LONGEST)
    try:
        yield
    finally:
        leave.set()
        thread.join(LONGEST)
