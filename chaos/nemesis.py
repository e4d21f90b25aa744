"""The nemesis: what goes wrong, when, and for how long, drawn from the seed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from chaos.destination import MODES, UP, Destination
from chaos.workers import LEASE

_STARTS = 5


class Nemesis:
    """Does one harm after the other. `workers` gives the processes alive, `server` may be None."""

    def __init__(
        self,
        seed: int,
        destination: Destination,
        workers: Callable[[], list[subprocess.Popen[bytes]]],
        *,
        server: Any = None,
        server_signal: signal.Signals = signal.SIGKILL,
        disk: Path | None = None,
    ) -> None:
        self._rng = random.Random(seed)  # noqa: S311
        self._destination, self._workers = destination, workers
        self._server, self._server_signal, self._disk = server, server_signal, disk
        self.faults: list[str] = []

    def strike(self) -> None:
        """One harm, undone before this returns, except for what is dead."""
        harms = [self._kill, self._kill, self._pause, self._spoil]
        if self._server is not None:
            harms += [self._restart, self._freeze]
        if self._disk is not None:
            harms.append(self._fill)
        self._rng.choice(harms)()

    def _note(self, text: str) -> None:
        self.faults.append(text)
        print(f"  {time.strftime('%H:%M:%S')}  {text}", flush=True)

    def _victim(self) -> subprocess.Popen[bytes] | None:
        alive = self._workers()
        return self._rng.choice(alive) if alive else None

    def _kill(self) -> None:
        if victim := self._victim():
            self._note(f"SIGKILL to {victim.args[3]}")  # type: ignore[index]
            victim.kill()

    def _pause(self) -> None:
        """Stopped for longer than its lease: alive, and no longer the holder of what it has in hand."""
        victim = self._victim()
        seconds = self._rng.choice([0.5, LEASE + 1])
        if victim is None:
            return
        self._note(f"SIGSTOP to {victim.args[3]} for {seconds} s")  # type: ignore[index]
        with suppress(ProcessLookupError):
            os.kill(victim.pid, signal.SIGSTOP)
            time.sleep(seconds)
            os.kill(victim.pid, signal.SIGCONT)

    def _spoil(self) -> None:
        mode = self._rng.choice(MODES)
        self._note(f"the destination is {mode}")
        self._destination.set_mode(mode)
        time.sleep(self._rng.uniform(0.3, 1.5))
        self._destination.set_mode(UP)

    def _restart(self) -> None:
        self._note(f"{self._server.package} is ended by {self._server_signal.name} and started again")
        self._server.stop(self._server_signal)
        for left in reversed(range(_STARTS)):
            time.sleep(1)  # what the dead server's children hold, they hold a little longer
            try:
                self._server.start()
            except RuntimeError:
                if not left:
                    raise
                self._server.stop(signal.SIGKILL)
            else:
                return

    def _freeze(self) -> None:
        """The server answers nobody for a while, and then goes on as if nothing had been."""
        process = self._server._process  # noqa: SLF001
        self._note(f"{self._server.package} is stopped for 2 s")
        with stopped(process.pid):
            time.sleep(2)

    def _fill(self) -> None:
        assert self._disk is not None
        self._note("the disk is full for 2 s")
        filler = self._disk / "filler"
        with suppress(OSError), filler.open("wb") as file:
            while True:
                file.write(b"\0" * 65536)
                file.flush()
        time.sleep(2)
        filler.unlink()


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """A process and all its children, stopped."""
    family = [pid, *_children(pid)]
    for one in family:
        with suppress(ProcessLookupError):
            os.kill(one, signal.SIGSTOP)
    try:
        yield
    finally:
        for one in family:
            with suppress(ProcessLookupError):
                os.kill(one, signal.SIGCONT)


def _children(pid: int) -> list[int]:
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False).stdout.split()
    return [int(child) for one in found for child in (one, *_children(int(one)))]
