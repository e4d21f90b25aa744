"""The harms, each done for real: what it does, and how it is known that it hit somebody."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import NamedTuple

from chaos.destination import MODES, SLOW, UP, Destination
from chaos.family import is_gone, is_stopped, stopped
from chaos.matrix import harms_of
from chaos.servers import Served, ServedPostgreSQL, ServedRabbitMQ
from chaos.story import lines
from chaos.subjects import Subject, Victim
from tests.proxy import DELAYED, ENDED, REPLIES_LOST, WITHHELD

_BRIEF = 0.5
_PATIENCE = 15.0  # seconds for a harm to hit somebody
_HOUR = 3600.0
_NO_SPACE = r"[Nn]o space left|disk is full|disk full|Errno 28"
_NO_FOLDER = r"Not a directory|NotADirectory|File exists|FileExists|Mkdirs failed"


class Harm(NamedTuple):
    """One harm. `hits` is how many running tasks may have to deliver again what they had not recorded.

    `strike` takes a number from 0 to 1, by which it chooses among victims or times; None when there is nobody to harm
    at this moment, False when it was done and hit nobody, True when it did. `in_burst`: it harms those who deliver at
    this moment.
    """

    name: str
    strike: Callable[[float], bool | None]
    hits: int = 0
    in_burst: bool = False


class Harms:
    """What can be done to one subject. Every harm is undone when its call returns, except for what is dead."""

    def __init__(self, subject: Subject, destination: Destination, say: Callable[[str], None]) -> None:
        self._subject, self._destination, self._say = subject, destination, say
        self._alive: list[Victim] = []
        # Where tasks have to be started, it takes them a while to meet what is in their way.
        self._long = _PATIENCE * (6 if subject.on_spark else 2)
        made = {harm.name: harm for harm in self._kinds()}
        self.all = [made[name] for name in harms_of(subject.traits)]

    def look(self) -> None:
        """Finds out who can be harmed now."""
        self._alive = self._subject.victims()

    def _kinds(self) -> list[Harm]:
        subject = self._subject
        tasks, traits = subject.tasks, subject.traits
        found = [
            Harm("fill disk", self._fill_disk, tasks if traits.disk == "store" else 0),
            Harm("take work directory away", self._take_work_dir),
            Harm("end leases", self._end_leases, tasks, in_burst=True),
        ]
        for role, hits in traits.roles.items():
            found.append(Harm(f"kill {role}", partial(self._kill, role), hits))
            found.append(Harm(f"stop {role}", partial(self._stop, role), hits))
        for role in traits.clocks:
            found.append(Harm(f"clock of {role} ahead", partial(self._set_clock, role, "+1h"), tasks))
            found.append(Harm(f"clock of {role} behind", partial(self._set_clock, role, "-1h"), tasks))
        found += [Harm(f"destination {mode}", partial(self._spoil, mode), in_burst=True) for mode in MODES]
        for served in subject.servers:
            found += self._to_server(served)
        return found

    def _to_server(self, served: Served) -> list[Harm]:
        name, proxy, tasks = served.name, served.proxy, self._subject.tasks

        def network(verb: str, mode: Callable[[], AbstractContextManager[None]], sign: str) -> Harm:
            return Harm(f"{verb} {name}", lambda _: self._network(served, f"{verb} {name}", mode, sign), tasks)

        found = [
            Harm(f"kill {name}", lambda _: self._server(f"{name} is killed", served.kill), tasks),
            Harm(f"freeze {name}", lambda _: self._server(f"{name} is frozen", lambda: served.freeze(2.0)), tasks),
            network("cut", proxy.cut, ENDED),
            network("half-open", proxy.half_open, WITHHELD),
            network("slow", lambda: proxy.slow(0.2), DELAYED),
            network("lose replies of", lambda: proxy.losing_replies(served.commit), REPLIES_LOST),
            Harm(f"fill {name}", lambda _: self._server(f"{name} lets nobody in", lambda: served.fill(2.0)), tasks),
        ]
        if isinstance(served, ServedPostgreSQL):
            found.append(Harm(f"fail over {name}", lambda _: self._fail_over(served), tasks))
        return found

    # -- processes ---------------------------------------------------------------------------------------------

    def _victim(self, role: str, drawn: float) -> Victim | None:
        alive = [victim for victim in self._alive if victim.role == role]
        return alive[int(drawn * len(alive))] if alive else None

    def _kill(self, role: str, drawn: float) -> bool | None:
        victim = self._victim(role, drawn)
        if victim is None:
            return None
        touched, began = self._subject.touched(victim), time.monotonic()
        try:
            os.kill(victim.pid, signal.SIGKILL)
        except ProcessLookupError:
            return None
        self._say(f"SIGKILL to the {role}")
        gone = _wait(lambda: is_gone(victim.pid), 5)
        self._destination.book.interrupt(began, touched, f"kill {role}")
        return gone

    def _stop(self, role: str, drawn: float) -> bool | None:
        """Stopped, and for longer than its lease if it has one: alive, and no longer the holder of what it has."""
        victim = self._victim(role, drawn)
        if victim is None or is_gone(victim.pid):
            return None
        lease = self._subject.traits.leases.get(role)
        seconds = _BRIEF if lease is None else lease + 1
        self._say(f"SIGSTOP to the {role} for {seconds:g} s")
        brokers = [served for served in self._subject.servers if isinstance(served, ServedRabbitMQ)]
        missed = sum(served.missed_heartbeats() for served in brokers)
        touched, began = self._subject.touched(victim), time.monotonic()
        with stopped([victim.pid]):
            time.sleep(seconds)
            hit = is_stopped(victim.pid)
            if lease is not None and brokers and role == "worker" and not self._subject.traits.sql:
                # There the connection is the lease, and the broker ends it.
                hit = hit and _wait(lambda: sum(one.missed_heartbeats() for one in brokers) > missed, _PATIENCE)
        self._destination.book.interrupt(began, touched, f"stop {role}")
        return hit

    def _set_clock(self, role: str, offset: str, _drawn: float) -> bool | None:
        victim = self._subject.clocked(role)
        if victim is None:
            return None
        self._say(f"the clock of the {role} is set {offset}")
        began, seen = time.monotonic(), len(self._clocks(role, victim.pid))
        self._subject.set_clock(role, offset)
        try:
            right = time.time() - began

            def is_wrong() -> bool:
                return any(abs(each - right) > _HOUR / 2 for each in self._clocks(role, victim.pid)[seen:])

            hit = _wait(is_wrong, _PATIENCE)
            time.sleep(1)
        finally:
            self._subject.set_clock(role, "+0")
        self._destination.book.interrupt(began, self._subject.touched(victim), f"clock {offset}")
        return hit

    def _clocks(self, role: str, pid: int) -> list[float]:
        """By how much this process's clock was ahead of the machine's monotonic one, each time that it was noted."""
        if role == "generator":
            return [float(line.split()[1]) for line in lines(self._subject.folder / "accepted")]
        return [event.offset for event in self._destination.book.events() if event.pid == pid]

    # -- the destination ---------------------------------------------------------------------------------------

    def _spoil(self, mode: str, _drawn: float) -> bool | None:
        if not self._destination.is_busy():
            return None
        self._say(f"the destination is {mode}")
        before = self._destination.bitten()[mode]
        self._destination.set_mode(mode)
        try:
            time.sleep(min(0.4 * self._subject.spell, 3.0))
            return _wait(lambda: self._destination.bitten()[mode] > before, _PATIENCE)
        finally:
            self._destination.set_mode(UP)

    # -- servers and their networks ----------------------------------------------------------------------------

    def _server(self, text: str, strike: Callable[[], bool]) -> bool:
        self._say(text)
        began = time.monotonic()
        hit = strike()
        self._destination.book.interrupt(began, [], text)
        return hit

    def _network(self, served: Served, text: str, mode: Callable[[], AbstractContextManager[None]], sign: str) -> bool:
        self._say(f"the network: {text}")
        began, before = time.monotonic(), served.proxy.counts[sign]
        with mode():
            time.sleep(2)
            hit = _wait(lambda: served.proxy.counts[sign] > before, _PATIENCE)
        self._destination.book.interrupt(began, [], text)
        return hit

    def _fail_over(self, served: ServedPostgreSQL) -> bool:
        mark = self._subject.mark()
        return self._server(
            "PostgreSQL fails over to its standby",
            lambda: served.fail_over(3.0, lambda: self._subject.said("read-only|recovery", mark)),
        )

    # -- disks, folders, leases --------------------------------------------------------------------------------

    def _fill_disk(self, _drawn: float) -> bool | None:
        disk, subject = self._subject.disk, self._subject
        if disk is None:
            return False
        self._say(f"the disk of the {subject.traits.disk} is full")
        mark, filler, began = subject.mark(), disk / "filler", time.monotonic()
        try:
            self._fill(filler)
            until = time.monotonic() + subject.spell
            hit = _wait(lambda: self._fill(filler) and subject.said(_NO_SPACE, mark), self._long)
            time.sleep(max(0, until - time.monotonic()))
        finally:
            filler.unlink()
        if subject.traits.disk == "store":
            self._destination.book.interrupt(began, [], "full disk")
        return hit

    @staticmethod
    def _fill(filler: os.PathLike[str]) -> bool:
        """Takes what room there is; whether the system says that there is none left."""
        try:
            with open(filler, "ab", buffering=0) as file:  # noqa: PTH123
                while True:
                    file.write(b"\0" * 4096)
        except OSError:
            return True

    def _take_work_dir(self, _drawn: float) -> bool | None:
        subject = self._subject
        work = subject.work_dir
        if not work.is_dir():
            return None
        self._say("the work directory is away")
        mark, away = subject.mark(), work.with_name("away")
        work.rename(away)
        work.touch()
        try:
            hit = _wait(lambda: subject.said(_NO_FOLDER, mark), self._long)
            time.sleep(1)
        finally:
            work.unlink()
            away.rename(work)
        return hit

    def _end_leases(self, _drawn: float) -> bool | None:
        """As if everybody had been away for a day: slowly, so that they hold something."""
        if not self._destination.is_busy():
            return None
        self._destination.set_mode(SLOW)
        began = time.monotonic()
        time.sleep(_BRIEF)
        held = self._subject.end_leases()
        self._destination.set_mode(UP)
        if not held:
            return None
        self._say(f"the leases of {held} messages run out")
        self._destination.book.interrupt(began, [], "end leases")
        return True


def _wait(happened: Callable[[], bool], seconds: float) -> bool:
    """Whether it happened in time."""
    until = time.monotonic() + seconds
    while not happened():
        if time.monotonic() > until:
            return False
        time.sleep(0.1)
    return True
