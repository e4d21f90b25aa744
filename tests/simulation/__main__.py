"""Runs schedules: `python -m tests.simulation --seed 17` repeats one and shows what happened, step by step."""

from __future__ import annotations

import argparse
import sys
import time

from tests.simulation.coverage import Coverage
from tests.simulation.simulate import simulation
from tests.simulation.variants import VARIANTS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=None, help="the seed to begin with; alone, only this one is run")
    parser.add_argument("--schedules", type=int, default=None, help="how many, one seed after the other")
    parser.add_argument("--crash-at", type=int, help="kill whoever comes to this step, and disturb nothing else")
    parser.add_argument("--variant", choices=VARIANTS, default="sound", help="the protocol, broken on purpose")
    parser.add_argument("--go-on", action="store_true", help="also after a schedule that found something")
    arguments = parser.parse_args()
    say, started, failed = sys.stdout.write, time.monotonic(), 0
    one = arguments.seed is not None and arguments.schedules is None
    number = 1 if one else arguments.schedules or 1000
    first, coverage = arguments.seed or 0, Coverage()
    with simulation(VARIANTS[arguments.variant]) as schedule_of:
        for seed in range(first, first + number):
            schedule = schedule_of(seed, crash_at=arguments.crash_at)
            problems = schedule.run()
            coverage.note(schedule)
            if one:
                say("".join(f"{line}\n" for line in schedule.trace))
            if problems:
                failed += 1
                say("\n".join([f"seed {seed} ({schedule.steps} steps, {schedule.faults} faults):", *problems, ""]))
                say(f"again: python -m tests.simulation --seed {seed} --variant {arguments.variant}\n")
                if not arguments.go_on:
                    break
    if not one:
        say(str(coverage))
    say(f"{number} schedules in {time.monotonic() - started:.1f} s, {failed} found something\n")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
