"""One run: generator, workers and nemesis for so long; then everything is let come to its end, and counted."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial

from chaos.checker import Report, check
from chaos.destination import Destination
from chaos.inspection import Inspector
from chaos.nemesis import Nemesis
from chaos.story import lines
from chaos.subjects import Subject

#: Set by whoever wants all runs to end now, and what they have started to be ended.
over = threading.Event()

_PATIENCE = 180.0  # seconds for everybody to begin
_AT_LAST = 1800.0  # seconds for everybody to come to an end, however slowly
_FIRST = 20  # messages on their way before the first harm


def run(name: str, subject: Subject, seconds: float, seed: int, only: tuple[str, ...] = ("",)) -> Report:
    """Harms for so many seconds, and for as long again if there is one that has not hit anybody yet."""
    say = partial(_say, name)
    destination = Destination(subject.folder)
    destination.set_seed(f"{name} {seed}")
    nemesis = Nemesis(f"{name} {seed}", destination, subject, say, only)
    say(f"{seconds:.0f} s, seed {seed}, {nemesis.to_do} harms")
    try:
        subject.keep_running()
        _wait_until(lambda: destination.is_busy() and len(lines(subject.folder / "accepted")) > _FIRST)
        began = time.monotonic()
        until, at_last = began + seconds, began + 2 * seconds + subject.patience
        while time.monotonic() < (at_last if nemesis.to_do else until) and not over.is_set():
            nemesis.strike()
            subject.keep_running()
            nemesis.rest(until - time.monotonic())
        say(f"is left alone after {time.monotonic() - began:.0f} s")
        subject.end_generator()
        return settle(subject, destination, nemesis, time.monotonic() - began)
    finally:
        subject.end()


def settle(subject: Subject, destination: Destination, nemesis: Nemesis, seconds: float) -> Report:
    """Waits until every accepted message is somewhere; the last report, good or not.

    As long as there are fewer and fewer in the stores, nobody is stuck: the machine may have much else to do.
    """
    folder, until, at_last = subject.folder, time.monotonic() + subject.patience, time.monotonic() + _AT_LAST
    inspector, fewest = Inspector(subject), float("inf")
    while True:
        subject.keep_running()
        stuck = inspector.still_there()
        if len(stuck) < fewest:
            fewest, until = len(stuck), min(time.monotonic() + subject.patience, at_last)
        # What goes from one store to the other meanwhile is in both for a moment, never in none.
        letters = [] if stuck and time.monotonic() < until else inspector.letters()
        story = destination.book.read()
        report = check(
            attempted=lines(folder / "attempted"),
            accepted=[line.split()[0] for line in lines(folder / "accepted")],
            story=story,
            delivered=subject.delivered(story),
            letters=letters,
            flows=subject.flows,
            listens=subject.traits.listens,
            tries=subject.traits.tries,
            # A task that is hit costs what it delivered and has not noted.
            duplicates_allowed=nemesis.hits * subject.chunk + destination.taken_again(ledger=subject.ledger),
            stuck=stuck,
            harms=nemesis.harms,
            missed=nemesis.missed,
            seconds=seconds,
        )
        if not (report.lost or report.stuck) or time.monotonic() > until or over.is_set():
            return report
        time.sleep(subject.spell / 6)


def _wait_until(begun: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not begun() and time.monotonic() < deadline and not over.is_set():
        time.sleep(0.1)


def _say(name: str, text: str) -> None:
    print(f"  {time.strftime('%H:%M:%S')}  {name}: {text}", flush=True)
