"""Tries to lose a message: `python -m chaos --duration 600 --seed 1`. Ends by itself; the seed repeats the harms."""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chaos.checker import Report, check, table
from chaos.destination import FLOWS, Destination, lines
from chaos.nemesis import Nemesis
from chaos.workers import CHUNK, is_ready
from homing import open_store
from homing.store import BROWSE
from tests.rabbitmq_server import RabbitMQ
from tests.servers import PostgreSQL, launch

_PATIENCE = 90.0  # seconds for everything to come out once nothing is disturbed any more
_WORKERS = 2
_FIRST = 20  # messages on their way before the first harm
#: The longest a message may be handed out again and again before its store gives it up; here it never should.
_OPTIONS = "ack_wait=3&max_deliveries=1000"


@dataclass
class Subject:
    """A store, who works on it, and what can be done to it."""

    store: str
    dead: str
    role: str
    server: Any = None
    server_signal: signal.Signals = signal.SIGKILL
    disk: Path | None = None
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)


def run(name: str, subject: Subject, folder: Path, seconds: float, seed: int) -> Report:
    """Generator, workers and nemesis for so long; then everything is let come to its end, and counted."""
    destination = Destination(folder)
    roles = {"generator": "generate", **{f"worker {number}": subject.role for number in range(_WORKERS)}}

    def keep_running() -> list[subprocess.Popen[bytes]]:
        for one, role in roles.items():
            process = subject.processes.get(one)
            if process is None or process.poll() is not None:
                subject.processes[one] = start(role, folder, subject)
        return [process for process in subject.processes.values() if is_ready(folder, process.pid)]

    nemesis = Nemesis(
        seed, destination, keep_running, server=subject.server, server_signal=subject.server_signal, disk=subject.disk
    )
    pauses = random.Random(seed)  # noqa: S311
    print(f"{name}: {seconds:.0f} s, seed {seed}", flush=True)
    try:
        wait_until(lambda: len(keep_running()) == len(roles) and len(lines(folder / "accepted")) > _FIRST)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            nemesis.strike()
            keep_running()
            time.sleep(pauses.uniform(0.3, 2.0))
        (folder / "enough").touch()
        subject.processes[next(iter(roles))].wait(timeout=60)
        del roles["generator"]
        return settle(subject, folder, destination, len(nemesis.faults), keep_running)
    finally:
        (folder / "stop").touch()
        end(subject)


def wait_until(ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not ready() and time.monotonic() < deadline:
        time.sleep(0.1)


def start(role: str, folder: Path, subject: Subject) -> subprocess.Popen[bytes]:
    with (folder / "log").open("ab") as log:
        command = [sys.executable, "-m", "chaos.workers", role, str(folder), subject.store, subject.dead]
        return subprocess.Popen(command, stdout=log, stderr=log)


def end(subject: Subject) -> None:
    for process in subject.processes.values():
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def settle(
    subject: Subject, folder: Path, destination: Destination, faults: int, keep_running: Callable[[], object]
) -> Report:
    """Waits until every accepted message is somewhere; the last report, good or not."""
    until = time.monotonic() + _PATIENCE
    while True:
        keep_running()
        report = check(
            attempted=lines(folder / "attempted"),
            accepted=lines(folder / "accepted"),
            delivered=destination.delivered(),
            dead=dead_letters(subject),
            flows=FLOWS,
            # One fault costs what every worker had delivered and not yet noted; what fails late is delivered again.
            duplicates_allowed=faults * CHUNK * _WORKERS + destination.failed_late() * len(FLOWS),
        )
        if not report.lost or time.monotonic() > until:
            return report
        time.sleep(0.5)


def dead_letters(subject: Subject) -> dict[str, str | None]:
    with open_store(subject.dead) as dead:
        if BROWSE in dead.features:
            found = dead.browse(100_000)
        else:
            found = []
            while (message := dead.retrieve()) is not None:
                found.append(message)
        # A listener's dead letter says in a header whose it is, a pipeline's in its id.
        ids = [message.headers.get("homing-message-id") or message.id.rpartition("/")[2] for message in found]
        return {one: message.dead_letter_reason for one, message in zip(ids, found, strict=True)}


@contextmanager
def subjects(names: list[str]) -> Iterator[dict[str, Subject]]:
    """The stores asked for, with their servers running."""
    with ExitStack() as stack:
        made: dict[str, Subject] = {}
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="homing-chaos-")))
        if "sqlite" in names:
            disk = stack.enter_context(small_disk(folder / "disk"))
            for role in ("listen", "deliver"):
                made[f"sqlite {role}"] = _sql(f"sqlite:///{folder}/disk/{role}.db", role, disk=disk)
        if "postgresql" in names:
            server = launch(PostgreSQL())
            stack.callback(server.remove)
            for role in ("listen", "deliver"):
                made[f"postgresql {role}"] = _sql(server.empty_database(), role, server=server)
        if "rabbitmq" in names:
            broker = launch(RabbitMQ())
            stack.callback(broker.remove)
            store, dead = (
                f"{broker.url}?store=orders&max_deliveries=1000",
                f"{broker.url}?store=orders_dead&max_deliveries=1000",
            )
            made["rabbitmq listen"] = Subject(store, dead, "listen", broker, signal.SIGTERM)
        yield made


def _sql(database: str, role: str, **more: Any) -> Subject:
    return Subject(f"{database}?store=orders&{_OPTIONS}", f"{database}?store=orders_dead&{_OPTIONS}", role, **more)


@contextmanager
def small_disk(folder: Path) -> Iterator[Path | None]:
    """A file system that is easily filled; None, and a plain folder, where only root may make one."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(folder)]
    mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    if not mounted:
        print("no small file system can be mounted here: the disk is never full in this run", flush=True)
    try:
        yield folder if mounted else None
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(folder)], check=False)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument("--duration", type=float, default=600, help="seconds, all stores together")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--stores", default="sqlite,postgresql,rabbitmq")
    arguments = parser.parse_args()
    seed = random.SystemRandom().randrange(10**6) if arguments.seed is None else arguments.seed
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended
    print(f"seed {seed}; again: make chaos DURATION={arguments.duration:.0f} SEED={seed}", flush=True)
    reports = {}
    with subjects(arguments.stores.split(",")) as made, tempfile.TemporaryDirectory(prefix="homing-chaos-") as folder:
        for name, subject in made.items():
            own = Path(folder) / name.replace(" ", "-")
            own.mkdir()
            reports[name] = run(name, subject, own, arguments.duration / len(made), seed)
            if not reports[name].good:
                print((own / "log").read_text()[-3000:])
    print(table(reports))
    if not all(report.good for report in reports.values()):
        print(f"seed {seed}")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
