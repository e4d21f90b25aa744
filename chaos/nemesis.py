"""The nemesis: what goes wrong, when, and for how long, drawn from the seed."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from chaos.destination import MODES, UP, Destination
from chaos.family import family

_STARTS = 5


class Victim(NamedTuple):
    """A process that may be harmed. Several may go by one name, and are as likely to be hit together as any other."""

    name: str
    pid: int


class Nemesis:
    """Does one harm after the other. `victims` gives the processes alive, `server` may be None.

    `spell` is how long a harm lasts that lasts long, and `calm` how long at most there is none, in seconds.
    """

    def __init__(
        self,
        seed: str,
        destination: Destination,
        victims: Callable[[], list[Victim]],
        spell: float,
        calm: float,
        *,
        server: Any = None,
        server_signal: signal.Signals = signal.SIGKILL,
        disk: Path | None = None,
    ) -> None:
        self._rng = random.Random(seed)  # noqa: S311
        self._destination, self._victims, self._spell = destination, victims, spell
        self._calm = calm
        self._server, self._server_signal, self._disk = server, server_signal, disk
        self.faults: list[str] = []

    def strike(self) -> None:
        """One harm, undone before this returns, except for what is dead."""
        harms = [self._kill, self._kill, self._kill, self._pause, self._spoil]
        if self._server is not None:
            harms += [self._restart, self._freeze]
        if self._disk is not None:
            harms.append(self._fill)
        self._rng.choice(harms)()

    def rest(self) -> None:
        """Leaves everybody alone for a moment."""
        time.sleep(self._rng.uniform(0.1, 1) * self._calm)

    def _note(self, text: str) -> None:
        self.faults.append(text)
        print(f"  {time.strftime('%H:%M:%S')}  {text}", flush=True)

    def _victim(self) -> Victim | None:
        alive = self._victims()
        if not alive:
            return None
        name = self._rng.choice(sorted({victim.name for victim in alive}))
        return self._rng.choice([victim for victim in alive if victim.name == name])

    def _kill(self) -> None:
        if victim := self._victim():
            self._note(f"SIGKILL to the {victim.name}")
            with suppress(ProcessLookupError):
                os.kill(victim.pid, signal.SIGKILL)

    def _pause(self) -> None:
        """Stopped, perhaps for longer than its lease: alive, and no longer the holder of what it has in hand."""
        victim = self._victim()
        seconds = self._rng.choice([0.5, self._spell + 1])
        if victim is None:
            return
        self._note(f"SIGSTOP to the {victim.name} for {seconds} s")
        with stopped([victim.pid]):
            time.sleep(seconds)

    def _spoil(self) -> None:
        mode = self._rng.choice(MODES)
        self._note(f"the destination is {mode}")
        self._destination.set_mode(mode)
        time.sleep(self._rng.uniform(0.1, 0.5) * self._spell)
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
        with stopped(family(process.pid)):
            time.sleep(2)

    def _fill(self) -> None:
        assert self._disk is not None
        self._note(f"the disk of the {self._disk.name} is full for {self._spell:.0f} s")
        filler = self._disk / "filler"
        with suppress(OSError), filler.open("wb") as file:
            while True:
                file.write(b"\0" * 65536)
                file.flush()
        time.sleep(self._spell)
        filler.unlink()


@contextmanager
def stopped(pids: list[int]) -> Iterator[None]:
    """These processes, stopped."""
    for one in pids:
        with suppress(ProcessLookupError):
            os.kill(one, signal.SIGSTOP)
    try:
        yield
    finally:
        for one in pids:
            with suppress(ProcessLookupError):
                os.kill(one, signal.SIGCONT)
