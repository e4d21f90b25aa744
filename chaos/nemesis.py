"""The nemesis: what goes wrong, when, and for how long, drawn from the seed."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from chaos.destination import MODES, SLOW, UP, Destination
from chaos.family import family

if TYPE_CHECKING:
    from chaos.subjects import Subject

_STARTS = 5
_BRIEF = 0.5


class Victim(NamedTuple):
    """A process that may be harmed."""

    role: str
    pid: int


class Harm(NamedTuple):
    """One kind of harm. `hits` is how many running tasks may have to deliver again what they had not recorded.

    `strike` takes a number from 0 to 1, by which it chooses among victims or times; False when there is nobody to harm.
    `in_burst`: it harms those who deliver at this moment.
    """

    name: str
    strike: Callable[[float], bool]
    hits: int = 0
    in_burst: bool = False


class Nemesis:
    """Does one harm after the other, from a shuffled deck that holds every kind once; then from the next.

    `hits` counts the tasks that were hit.
    """

    def __init__(self, seed: str, destination: Destination, subject: Subject) -> None:
        self._decks, self._rests = random.Random(seed), random.Random(seed)  # noqa: S311
        self._destination, self._subject = destination, subject
        self._harms = list(self._kinds())
        self._hand: list[tuple[Harm, float]] = []
        self._done: Counter[str] = Counter()
        self._alive: list[Victim] = []
        self.hits = 0

    @property
    def harms(self) -> dict[str, int]:
        """How often each kind was done."""
        return {harm.name: self._done[harm.name] for harm in self._harms}

    def deal(self) -> list[tuple[Harm, float]]:
        """The next deck: which harms there will be depends on nothing but the seed."""
        return [(harm, self._decks.random()) for harm in self._decks.sample(self._harms, len(self._harms))]

    def strike(self) -> None:
        """One harm, undone before this returns, except for what is dead: the first in hand that has a victim now."""
        self._hand = self._hand or self.deal()
        until = time.monotonic() + self._subject.calm
        while time.monotonic() < until:
            self._alive = self._subject.victims()
            if any(self._play(card) for card in self._in_order()):
                return
            time.sleep(0.1)

    def _in_order(self) -> list[tuple[Harm, float]]:
        """As dealt; but where deliveries come in bursts, a burst is made use of."""
        return sorted(self._hand, key=lambda card: self._subject.on_spark and not card[0].in_burst)

    def _play(self, card: tuple[Harm, float]) -> bool:
        harm, drawn = card
        if not harm.strike(drawn):
            return False
        self._hand.remove(card)
        self._done[harm.name] += 1
        self.hits += harm.hits
        return True

    def rest(self, left: float) -> None:
        """Leaves everybody alone for a moment, with `left` seconds to go: there is to be time for every harm.

        Not while there is a burst of deliveries to make use of.
        """
        to_do = sum(1 for times in self.harms.values() if not times)
        if self._subject.on_spark and any(harm.in_burst for harm, _ in self._hand) and self._destination.is_busy():
            return
        time.sleep(self._rests.uniform(0.1, 1) * min(self._subject.calm, max(left, 0) / (2 * to_do + 1)))

    # -- the harms ---------------------------------------------------------------------------------------------

    def _kinds(self) -> Iterator[Harm]:
        subject = self._subject
        for role, hits in subject.roles.items():
            yield Harm(f"kill {role}", partial(self._kill, role), hits)
            # Who delivers is stopped for longer than anybody waits for a sign of life.
            yield Harm(f"stop {role}", partial(self._stop, role, subject.spell + 1 if hits else _BRIEF), hits)
        for mode in MODES:
            yield Harm(f"destination {mode}", partial(self._spoil, mode), in_burst=True)
        if subject.server is not None:
            yield Harm("restart server", self._restart, subject.tasks)
            yield Harm("freeze server", self._freeze, subject.tasks)
        if subject.disk is not None:
            yield Harm("fill disk", self._fill, subject.tasks if subject.store_on_disk else 0)
        if subject.on_sql:
            yield Harm("end leases", self._end_leases, subject.tasks, in_burst=True)

    def _victim(self, role: str, drawn: float) -> Victim | None:
        alive = [victim for victim in self._alive if victim.role == role]
        return alive[int(drawn * len(alive))] if alive else None

    def _kill(self, role: str, drawn: float) -> bool:
        victim = self._victim(role, drawn)
        if victim is None:
            return False
        try:
            os.kill(victim.pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        _say(f"SIGKILL to the {role}")
        return True

    def _stop(self, role: str, seconds: float, drawn: float) -> bool:
        """Stopped, perhaps for longer than its lease: alive, and no longer the holder of what it has in hand."""
        victim = self._victim(role, drawn)
        if victim is None:
            return False
        _say(f"SIGSTOP to the {role} for {seconds} s")
        with stopped([victim.pid]):
            time.sleep(seconds)
        return True

    def _spoil(self, mode: str, drawn: float) -> bool:
        if not self._destination.is_busy():
            return False
        _say(f"the destination is {mode}")
        self._destination.set_mode(mode)
        time.sleep((0.1 + 0.4 * drawn) * self._subject.spell)
        self._destination.set_mode(UP)
        return True

    def _restart(self, _drawn: float) -> bool:
        server, how = self._subject.server, self._subject.server_signal
        _say(f"{server.package} is ended by {how.name} and started again")
        server.stop(how)
        for left in reversed(range(_STARTS)):
            time.sleep(1)  # what the dead server's children hold, they hold a little longer
            try:
                server.start()
            except RuntimeError:
                if not left:
                    raise
                server.stop(signal.SIGKILL)
            else:
                break
        return True

    def _freeze(self, _drawn: float) -> bool:
        """The server answers nobody for a while, and then goes on as if nothing had been."""
        server = self._subject.server
        _say(f"{server.package} is stopped for 2 s")
        with stopped(family(server._process.pid)):  # noqa: SLF001
            time.sleep(2)
        return True

    def _fill(self, _drawn: float) -> bool:
        disk, seconds = self._subject.disk, self._subject.spell
        assert disk is not None
        _say(f"the disk of the {disk.name} is full for {seconds:.0f} s")
        filler = disk / "filler"
        with suppress(OSError), filler.open("wb") as file:
            while True:
                file.write(b"\0" * 65536)
                file.flush()
        time.sleep(seconds)
        filler.unlink()
        return True

    def _end_leases(self, _drawn: float) -> bool:
        """The clock jumps while everybody is at work: slowly, so that they hold something."""
        if not self._destination.is_busy():
            return False
        self._destination.set_mode(SLOW)
        time.sleep(_BRIEF)
        held = self._subject.end_leases()
        self._destination.set_mode(UP)
        if held:
            _say(f"the leases of {held} messages run out")
        return held > 0


def _say(text: str) -> None:
    print(f"  {time.strftime('%H:%M:%S')}  {text}", flush=True)


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
