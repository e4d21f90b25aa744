"""Tries to lose a message: `python -m chaos --duration 600 --seed 1`. Ends by itself; the seed repeats the harms."""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from chaos.checker import Report, check, table
from chaos.destination import FLOWS, Destination, lines
from chaos.nemesis import Nemesis
from chaos.subjects import KINDS, Subject
from homing import open_store
from homing.message import AVAILABLE, LEASED, SCHEDULED
from homing.store import BROWSE
from homing.stores.sql import SqlStore

_PATIENCE = 90.0  # seconds for everybody to begin
UNFINISHED = (AVAILABLE, LEASED, SCHEDULED)
_FIRST = 20  # messages on their way before the first harm


def run(name: str, subject: Subject, seconds: float, seed: int) -> Report:
    """Generator, workers and nemesis for so long; then everything is let come to its end, and counted."""
    destination = Destination(subject.folder)
    nemesis = Nemesis(
        f"{name} {seed}",
        destination,
        subject.victims,
        subject.spell,
        subject.calm,
        server=subject.server,
        server_signal=subject.server_signal,
        disk=subject.disk,
    )
    print(f"{name}: {seconds:.0f} s, seed {seed}", flush=True)
    try:
        subject.keep_running()
        wait_until(lambda: subject.at_work() and len(lines(subject.folder / "accepted")) > _FIRST)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            nemesis.strike()
            subject.keep_running()
            nemesis.rest()
        subject.end_generator()
        return settle(subject, destination, len(nemesis.faults))
    finally:
        subject.end()


def wait_until(begun: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not begun() and time.monotonic() < deadline:
        time.sleep(0.1)


def settle(subject: Subject, destination: Destination, faults: int) -> Report:
    """Waits until every accepted message is somewhere; the last report, good or not."""
    folder, until = subject.folder, time.monotonic() + subject.patience
    while True:
        subject.keep_running()
        report = check(
            attempted=lines(folder / "attempted"),
            accepted=lines(folder / "accepted"),
            delivered=destination.delivered(),
            dead=dead_letters(subject),
            flows=FLOWS,
            # One fault costs what was delivered and not yet noted; what fails late is delivered again.
            duplicates_allowed=faults * subject.at_once + destination.failed_late() * len(FLOWS),
            stuck=still_in_store(subject),
        )
        if not (report.lost or report.stuck) or time.monotonic() > until:
            return report
        time.sleep(subject.spell / 6)


def still_in_store(subject: Subject) -> int:
    """How many messages wait or are held, failed ones included; 0 where a store cannot tell."""
    with open_store(subject.store) as store:
        if not isinstance(store, SqlStore):
            return 0
        with store.sibling(f"{store.name}_failures") as failures:
            return sum(each.count()[state] for each in (store, failures) for state in UNFINISHED)


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


def run_all(names: list[str], seconds: float, seed: int) -> dict[str, Report]:
    """One subject after the other, each for its share of the time."""
    reports, shares = {}, sum(KINDS[name].share for name in names)
    for name in names:
        with tempfile.TemporaryDirectory(prefix="homing-chaos-") as folder, KINDS[name].make(Path(folder)) as subject:
            reports[name] = run(name, subject, seconds * KINDS[name].share / shares, seed)
            print(table({name: reports[name]}), flush=True)
            if not reports[name].good:
                print((Path(folder) / "log").read_text(errors="replace")[-3000:], flush=True)
    return reports


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument("--duration", type=float, default=600, help="seconds of harm, all subjects together")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--subjects", default=",".join(KINDS), help=f"some of these: {', '.join(KINDS)}")
    arguments = parser.parse_args()
    names = [name for name in KINDS if any(name.startswith(asked) for asked in arguments.subjects.split(","))]
    seed = random.SystemRandom().randrange(10**6) if arguments.seed is None else arguments.seed
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended
    asked = "" if len(names) == len(KINDS) else f' SUBJECTS="{arguments.subjects}"'
    again = f"make chaos DURATION={arguments.duration:.0f} SEED={seed}{asked}"
    print(f"seed {seed}; again: {again}", flush=True)
    reports = run_all(names, arguments.duration, seed)
    print(table(reports))
    if not reports or not all(report.good for report in reports.values()):
        print(f"seed {seed}; again: {again}")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
