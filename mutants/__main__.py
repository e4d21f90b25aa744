"""`make mutants`: each guard of the code is taken out of a copy of it, and the tests that name it must fail."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from queue import SimpleQueue

from mutants.guard import Guard, StaleGuardError
from mutants.guards import GUARDS
from mutants.run import BROKEN, FAILED, PASSED, Outcome, Tree, missing

ROOT = Path(__file__).parents[1]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m mutants", description=__doc__)
    parser.add_argument("only", nargs="?", default="", help="only guards whose file or sentence has this text in it")
    parser.add_argument("--jobs", type=int, default=2, help="how many guards at a time")
    options = parser.parse_args()
    chosen = [guard for guard in GUARDS if options.only in guard.file or options.only in guard.what]
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="homing-mutants-") as folder:
        trees = [Tree(ROOT, Path(folder) / f"tree-{number}") for number in range(options.jobs)]
        sound, faults = _check(chosen, trees[0], options.jobs)
        passed = _take_out(sound, trees)
    failed = len(chosen) - passed
    if faults:
        print(f"{faults} guards could not be taken out, or have a test that fails with them")
    print(f"{passed} passed, {failed} failed in {time.monotonic() - began:.0f} s")
    return 1 if failed or not chosen else 0


def _check(guards: Sequence[Guard], tree: Tree, jobs: int) -> tuple[list[Guard], int]:
    """The guards that are in the code once and whose tests pass on it; how many are not such."""
    fitting = []
    for guard in guards:
        try:
            guard.removed_from(ROOT)
        except StaleGuardError as error:
            _tell("STALE", guard, str(error))
        else:
            fitting.append(guard)
    tests = {test for guard in fitting for test in guard.tests}
    there = sorted(tests - missing(sorted(tests), ROOT))
    ended = dict.fromkeys(tests, Outcome(BROKEN, "there is no such test"))
    ended |= tree.run(there, "-n", str(jobs), "--dist", "loadscope", timeout=3600) if there else {}
    sound = []
    for guard in fitting:
        bad = [f"{test}: {ended[test].state} {ended[test].said}" for test in guard.tests if ended[test].state != PASSED]
        if bad:
            _tell("UNSOUND", guard, f"with the guard in place, {bad[0]}")
        else:
            sound.append(guard)
    return sound, len(guards) - len(sound)


def _take_out(guards: Sequence[Guard], trees: Sequence[Tree]) -> int:
    """Takes each of these guards out, as many at a time as there are trees; how many of them were missed."""
    free: SimpleQueue[Tree] = SimpleQueue()
    for tree in trees:
        free.put(tree)

    def take_out(guard: Guard) -> bool:
        tree, began = free.get(), time.monotonic()
        try:
            tree.remove(guard)
            ended = tree.run(guard.tests)
            tree.restore(guard, ROOT)
        finally:
            free.put(tree)
        missed = [f"{test}: {one.state} {one.said}" for test, one in ended.items() if one.state != FAILED]
        if missed:
            _tell("SURVIVED", guard, missed[0])
        else:
            _tell("caught", guard, f"{time.monotonic() - began:.1f} s")
        return not missed

    with ThreadPoolExecutor(len(trees)) as pool:
        return sum(done.result() for done in as_completed([pool.submit(take_out, guard) for guard in guards]))


def _tell(verdict: str, guard: Guard, said: str) -> None:
    print(f"{verdict:9}{guard.path}: {guard.what} ({said})", flush=True)


sys.exit(main())
