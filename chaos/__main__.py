"""Tries to lose a message: `python -m chaos --duration 600 --seed 1`. Ends by itself; the seed repeats the harms."""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from chaos.checker import Report, check, table
from chaos.destination import FLOWS, Destination, lines
from chaos.nemesis import Nemesis
from chaos.subjects import KINDS, Subject
from homing import open_store
from homing.message import AVAILABLE, LEASED, SCHEDULED
from homing.store import BROWSE
from homing.stores.rabbitmq.store import RabbitStore
from homing.stores.sql import SqlStore

_PATIENCE = 180.0  # seconds for everybody to begin
UNFINISHED = (AVAILABLE, LEASED, SCHEDULED)
_FIRST = 20  # messages on their way before the first harm
#: So many seconds are enough to do every harm to every subject.
THOROUGH = 600.0


def run(name: str, subject: Subject, seconds: float, seed: int, *, thorough: bool = False) -> Report:
    """Generator, workers and nemesis for so long; then everything is let come to its end, and counted."""
    destination = Destination(subject.folder)
    destination.set_seed(f"{name} {seed}")
    nemesis = Nemesis(f"{name} {seed}", destination, subject)
    print(f"{name}: {seconds:.0f} s, seed {seed}", flush=True)
    try:
        subject.keep_running()
        wait_until(lambda: destination.is_busy() and len(lines(subject.folder / "accepted")) > _FIRST)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            nemesis.strike()
            subject.keep_running()
            nemesis.rest(until - time.monotonic())
        subject.end_generator()
        return settle(subject, destination, nemesis, thorough=thorough)
    finally:
        subject.end()


def wait_until(begun: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not begun() and time.monotonic() < deadline:
        time.sleep(0.1)


def settle(subject: Subject, destination: Destination, nemesis: Nemesis, *, thorough: bool) -> Report:
    """Waits until every accepted message is somewhere; the last report, good or not."""
    folder, until = subject.folder, time.monotonic() + subject.patience
    while True:
        subject.keep_running()
        report = check(
            attempted=lines(folder / "attempted"),
            accepted=lines(folder / "accepted"),
            delivered=destination.delivered(),
            dropped=destination.dropped(),
            refused=destination.refused(),
            dead=dead_letters(subject),
            flows=FLOWS,
            # A task that is hit costs what it delivered and has not noted, and one message that it is said to die of.
            duplicates_allowed=nemesis.hits * subject.chunk + destination.taken_again(ledger=subject.ledger),
            unexplained_allowed=nemesis.hits if subject.on_spark else 0,
            stuck=still_in_store(subject),
            harms=nemesis.harms,
            thorough=thorough,
        )
        if not (report.lost or report.stuck) or time.monotonic() > until:
            return report
        time.sleep(subject.spell / 6)


def still_in_store(subject: Subject) -> list[str]:
    """The messages that wait or are held, failed ones included, as far as the store can tell."""
    with open_store(subject.store) as store:
        if isinstance(store, RabbitStore):
            lengths = store.lengths()
            return ["one at the broker"] * sum(lengths[state] for state in UNFINISHED)
        assert isinstance(store, SqlStore)
        with store.sibling(f"{store.name}_failures") as failures:
            failures.count()  # makes the table that a listener does without
            return [one for each in (store, failures) for one, state, _ in each.states() if state in UNFINISHED]


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
    """One subject after the other, each for its share of the time. What cannot be run has failed; the next comes."""
    reports, shares = {}, sum(KINDS[name].share for name in names)
    for name in names:
        with tempfile.TemporaryDirectory(prefix="homing-chaos-") as folder:
            try:
                with KINDS[name].make(Path(folder)) as subject:
                    share = seconds * KINDS[name].share / shares
                    reports[name] = run(name, subject, share, seed, thorough=seconds >= THOROUGH)
            except (Exception, pytest.skip.Exception, pytest.fail.Exception) as error:  # noqa: BLE001
                traceback.print_exc()
                reports[name] = Report(error=f"{type(error).__name__}: {error}")
            print(table({name: reports[name]}), flush=True)
            if not reports[name].good and (log := Path(folder) / "log").exists():
                print(log.read_text(errors="replace")[-3000:], flush=True)
    return reports


def chosen(asked: str) -> list[str]:
    """The subjects that these beginnings of names mean; raises ValueError for one that means none."""
    beginnings = [one.strip() for one in asked.split(",")]
    for one in beginnings:
        if not one or not any(name.startswith(one) for name in KINDS):
            raise ValueError(f"{one!r} is none of the subjects: {', '.join(KINDS)}")
    return [name for name in KINDS if name.startswith(tuple(beginnings))]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument("--duration", type=float, default=THOROUGH, help="seconds of harm, all subjects together")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--subjects", default=",".join(KINDS), help=f"some of these: {', '.join(KINDS)}")
    arguments = parser.parse_args()
    try:
        names = chosen(arguments.subjects)
    except ValueError as error:
        parser.error(str(error))
    seed = random.SystemRandom().randrange(10**6) if arguments.seed is None else arguments.seed
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended
    asked = "" if len(names) == len(KINDS) else f' SUBJECTS="{arguments.subjects}"'
    again = f"make chaos DURATION={arguments.duration:.0f} SEED={seed}{asked}"
    print(f"seed {seed}; again: {again}", flush=True)
    reports = run_all(names, arguments.duration, seed)
    print(table(reports))
    if not all(report.good for report in reports.values()):
        print(f"seed {seed}; again: {again}")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
