"""Runs schedules: `python -m tests.simulation --seed 17` repeats one and shows what happened, call by call."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import pytest

from tests.simulation.schedule import Schedule
from tests.simulation.variants import VARIANTS
from tests.simulation.world import World


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="only this one, with its trace")
    parser.add_argument("--crash-at", type=int, help="kill whoever makes this store call, and disturb nothing else")
    parser.add_argument("--schedules", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="the seed to begin with")
    parser.add_argument("--sqlite", action="store_true", help="on the SQL store itself, not on its model")
    parser.add_argument("--variant", choices=VARIANTS, default="sound")
    arguments = parser.parse_args()
    variant, started, say = VARIANTS[arguments.variant], time.monotonic(), sys.stdout.write
    one = arguments.seed is not None
    seeds = [arguments.seed] if one else range(arguments.first, arguments.first + arguments.schedules)
    with tempfile.TemporaryDirectory(prefix="homing-simulation-") as folder, pytest.MonkeyPatch.context() as patch:
        variant.patch(patch)
        world = World(Path(folder) if arguments.sqlite else None)
        for seed in seeds:
            schedule = Schedule(world, seed, crash_at=arguments.crash_at)
            problems = schedule.run()
            if one:
                say("".join(f"{line}\n" for line in schedule.trace))
            if problems:
                say("\n".join([f"seed {seed} ({schedule.calls} calls, {schedule.faults} faults):", *problems, ""]))
                say(f"again: python -m tests.simulation --seed {seed} --variant {arguments.variant}\n")
                return 1
        say(f"{len(seeds)} schedules in {time.monotonic() - started:.1f} s: nothing lost, nothing stuck\n")
        world.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
