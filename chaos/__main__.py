"""Tries to lose a message: `python -m chaos --duration 600 --seed 1`. Ends by itself; the seed repeats the harms."""

from __future__ import annotations

import argparse
import random
import signal
import tempfile
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from chaos.checker import Report, table
from chaos.kinds import KINDS
from chaos.matrix import harms_of
from chaos.run import over, run

#: So many seconds are enough to do every harm to every subject.
THOROUGH = 600.0


def run_all(names: list[str], seconds: float, seed: int, only: tuple[str, ...] = ("",)) -> dict[str, Report]:
    """The subjects of a lane one after the other, each for its share of the time; the lanes side by side."""
    lanes: dict[int, list[str]] = {}
    for name in names:
        lanes.setdefault(KINDS[name].lane, []).append(name)
    with ThreadPoolExecutor(max_workers=len(lanes)) as threads:
        found = [threads.submit(_run_lane, lane, seconds, seed, only) for lane in lanes.values()]
        reports = {name: report for each in found for name, report in each.result().items()}
    return {name: reports[name] for name in names}


def _run_lane(names: list[str], seconds: float, seed: int, only: tuple[str, ...]) -> dict[str, Report]:
    """What cannot be run has failed; the next comes."""
    reports, shares = dict[str, Report](), sum(KINDS[name].share for name in names)
    for name in names:
        if over.is_set():
            reports[name] = Report(error="it was told to end")
            continue
        kind = KINDS[name]
        with tempfile.TemporaryDirectory(prefix="homing-chaos-", ignore_cleanup_errors=True) as folder:
            try:
                with kind.make(Path(folder), kind.traits) as subject:
                    reports[name] = run(name, subject, seconds * kind.share / shares, seed, only)
            except (Exception, pytest.skip.Exception, pytest.fail.Exception) as error:  # noqa: BLE001
                traceback.print_exc()
                reports[name] = Report(error=f"{type(error).__name__}: {error}")
            print(table({name: reports[name]}), flush=True)
            if not reports[name].good and (log := Path(folder) / "log").exists():
                print(log.read_text(errors="replace")[-3000:], flush=True)
    return reports


def chosen(asked: str) -> list[str]:
    """The subjects that these beginnings of names mean; raises ValueError for one that means none."""
    return _chosen(asked, list(KINDS), "subjects")


def chosen_harms(asked: str, names: list[str]) -> tuple[str, ...]:
    """The beginnings of the names of harms; raises ValueError for one that is done to none of these subjects."""
    known = list(dict.fromkeys(harm for name in names for harm in harms_of(KINDS[name].traits)))
    _chosen(asked, known, "harms")
    return tuple(one.strip() for one in asked.split(","))


def _chosen(asked: str, known: list[str], what: str) -> list[str]:
    beginnings = [one.strip() for one in asked.split(",")]
    for one in beginnings:
        if not one or not any(name.startswith(one) for name in known):
            raise ValueError(f"{one!r} is none of the {what}: {', '.join(known)}")
    return [name for name in known if name.startswith(tuple(beginnings))]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument("--duration", type=float, default=THOROUGH, help="seconds of harm, all subjects together")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--subjects", default=",".join(KINDS), help=f"some of these: {', '.join(KINDS)}")
    parser.add_argument("--harms", default=None, help="only those whose names begin so, such as kill,end leases")
    arguments = parser.parse_args()
    try:
        names = chosen(arguments.subjects)
        only = ("",) if arguments.harms is None else chosen_harms(arguments.harms, names)
    except ValueError as error:
        parser.error(str(error))
    seed = random.SystemRandom().randrange(10**6) if arguments.seed is None else arguments.seed
    signal.signal(signal.SIGTERM, lambda *_: over.set())  # so that what was started is ended
    asked = "" if len(names) == len(KINDS) else f' SUBJECTS="{arguments.subjects}"'
    again = f"make chaos DURATION={arguments.duration:.0f} SEED={seed}{asked}"
    print(f"seed {seed}; again: {again}", flush=True)
    began = time.monotonic()
    reports = run_all(names, arguments.duration, seed, only)
    print(table(reports))
    print(f"{time.monotonic() - began:.0f} s in all")
    if over.is_set() or not all(report.good for report in reports.values()):
        print(f"seed {seed}; again: {again}")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
