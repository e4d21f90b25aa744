"""What a chaos run is about: a store with those who work on it, and what of it can be harmed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, NamedTuple

from sqlalchemy.engine import Connection

from chaos.chain import FOLDER
from chaos.family import family
from chaos.servers import Served
from chaos.story import Story
from chaos.workers import CHUNK, DEAD_LETTERS, LEASE, SOURCE, STORE, is_ready
from homing import open_store
from homing.errors import StoreError
from homing.stores.sql import SqlStore

ROOT = Path(__file__).resolve().parent.parent
PYTHONPATH = os.pathsep.join([str(ROOT / "plugins"), str(ROOT)])
_DAY = 86_400 * 10**9
#: Debian's; it makes one process believe in another time.
FAKETIME = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)


class Victim(NamedTuple):
    """A process that may be harmed."""

    role: str
    pid: int


@dataclass(frozen=True)
class Traits:
    """What there is to harm, known before anything is started.

    `roles` are those of the processes, with how many running tasks are hit when one of them is harmed; `leases` are
    those of the roles that hold messages, in seconds. `clocks` are the roles of which one process can be given another
    time. `tries` is how often a handler must have failed for a message before it may be a dead letter, and
    `listens` that a listener counts them.
    """

    roles: Mapping[str, int]
    leases: Mapping[str, float]
    servers: tuple[str, ...] = ()
    disk: str = ""
    work_dir: bool = False
    sql: bool = True
    clocks: tuple[str, ...] = ("generator", "worker")
    on_spark: bool = False
    listens: bool = False
    tries: int = 2


@dataclass
class Subject:
    """A store, a generator, and workers.

    `workers` are the processes that are started, by name, with what each does. `tasks` run at once, and `chunk` is how
    many deliveries one may have made that nobody has noted. Between two messages the generator makes a `pause`, and a
    delivery takes as long as `takes`. `spell` is how long a harm lasts that lasts long, and `calm` how long at most
    there is none. All are seconds. The URLs lead through the servers' proxies.
    """

    folder: Path
    traits: Traits
    store: str
    dead: str
    workers: Mapping[str, str]
    source: str = ""
    servers: Sequence[Served] = ()
    disk: Path | None = None
    spell: float = LEASE
    calm: float = 1.0
    patience: float = 120.0
    tasks: int = 2
    chunk: int = CHUNK
    pause: float = 0.0
    takes: float = 0.0
    flows: Sequence[str] = ("lake", "crm")
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    on_spark: ClassVar[bool] = False

    # -- its processes -----------------------------------------------------------------------------------------

    def keep_running(self) -> None:
        """Starts what is not running: all of it at first, then what was killed."""
        for name, command in self._commands().items():
            process = self.processes.get(name)
            if process is None or process.poll() is not None:
                self.processes[name] = self._start(name, command)

    def victims(self) -> list[Victim]:
        """The processes that are at work, and worth killing."""
        ready = {name: one.pid for name, one in self.processes.items() if is_ready(self.folder, one.pid)}
        return [Victim(role_of(name), pid) for name, pid in ready.items()]

    def clocked(self, role: str) -> Victim | None:
        """The process of this role whose clock can be set, if it is at work."""
        name = next(name for name in self.workers if role_of(name) == role)
        process = self.processes.get(name)
        if process is None or process.poll() is not None or not is_ready(self.folder, process.pid):
            return None
        return Victim(role, process.pid)

    def set_clock(self, role: str, offset: str) -> None:
        """Sets the clock of that process, by `offset` such as "+1h"."""
        clock = self._clock_of(role)
        new = clock.with_suffix(".new")
        new.write_text(offset)
        new.replace(clock)

    def touched(self, victim: Victim) -> list[int]:
        """The processes that a harm to this one befalls; none means: nobody knows, perhaps all."""
        return [] if self.on_spark else family(victim.pid)

    def end_generator(self) -> None:
        (self.folder / "enough").touch()
        self.processes["generator"].wait(timeout=120)

    def end(self) -> None:
        (self.folder / "stop").touch()
        for process in self.processes.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=20)
            with suppress(ProcessLookupError):  # with all that came from it
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _commands(self) -> dict[str, list[str]]:
        enough = (self.folder / "enough").exists()
        return {
            name: [sys.executable, "-m", "chaos.workers", role, str(self.folder), name]
            for name, role in self.workers.items()
            if not (enough and role == "generate")
        }

    def _start(self, name: str, command: list[str]) -> subprocess.Popen[bytes]:
        environment = {**self._environment(), **self._clock_settings(name)}
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT, env=environment, start_new_session=True)

    def _environment(self) -> dict[str, str]:
        stores = {SOURCE: self.source or self.store, STORE: self.store, DEAD_LETTERS: self.dead}
        # A run has tasks to start: who delivers so is sent fewer messages than a listener.
        pause = self.pause or (0.02 if self.traits.listens else 0.2)
        ours = {FOLDER: str(self.folder), "HOMING_CHAOS_TAKES": str(self.takes), "HOMING_CHAOS_PAUSE": str(pause)}
        return {**os.environ, "PYTHONPATH": PYTHONPATH, **stores, **ours}

    def _clock_settings(self, name: str) -> dict[str, str]:
        role = role_of(name)
        first = next((one for one in self.workers if role_of(one) == role), None)
        if role not in self.traits.clocks or name != first or FAKETIME is None:
            return {}
        self.set_clock(role, "+0")
        return {
            "LD_PRELOAD": str(FAKETIME),
            "FAKETIME_TIMESTAMP_FILE": str(self._clock_of(role)),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
        }

    def _clock_of(self, role: str) -> Path:
        return self.folder / f"clock.{role}"

    # -- what it says ------------------------------------------------------------------------------------------

    def mark(self) -> Mapping[Path, int]:
        """Where its logs end now."""
        return {log: log.stat().st_size for log in self._logs()}

    def said(self, pattern: str, since: Mapping[Path, int]) -> bool:
        """Whether this was said since then."""
        return any(re.search(pattern, _read(log, since.get(log, 0))) for log in self._logs())

    def _logs(self) -> list[Path]:
        return [log for log in [self.folder / "log"] if log.exists()]

    # -- its stores --------------------------------------------------------------------------------------------

    @property
    def work_dir(self) -> Path:
        return self.folder / "work" / "runs"

    @property
    def ledger(self) -> bool:
        """Whether it is known which flows a message has been delivered to."""
        return not self.traits.listens

    def delivered(self, story: Story) -> Counter[str]:
        """How often each "<id> <flow>" was delivered."""
        return story.delivered()

    def end_leases(self) -> int:
        """Makes everything that is held have been held for too long; how many messages that are."""
        with open_store(self.store) as store:
            assert isinstance(store, SqlStore)
            with store.sibling(f"{store.name}_failures") as failures, suppress(StoreError):
                failures.count()  # makes the table that a listener does without
                return _age(store, failures)
        return 0


def urls(database: str) -> tuple[str, str]:
    """The store and the dead-letter store in this database, with leases as short as those that workers ask for."""
    options = f"ack_wait={LEASE:g}"
    return f"{database}?store=orders&{options}", f"{database}?store=orders_dead&{options}"


def _read(log: Path, since: int) -> str:
    with log.open("rb") as file:
        file.seek(since)
        return file.read().decode(errors="replace")


def role_of(name: str) -> str:
    return name.rstrip(" 0123456789")


def _age(store: SqlStore, failures: SqlStore) -> int:
    """As if a day had passed for whoever holds messages of these stores, or a step of the ledger beside them."""
    messages, steps = (store._table, failures._table), store.ledger()._steps  # noqa: SLF001

    def work(connection: Connection) -> int:
        connection.execute(steps.update().values(time_expires=steps.c.time_expires - _DAY))
        return sum(
            connection.execute(
                table.update().where(table.c.lock_token.is_not(None)).values(time_next=table.c.time_next - _DAY)
            ).rowcount
            for table in messages
        )

    return store._database.write(work)  # noqa: SLF001
