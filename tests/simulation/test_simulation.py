"""Thousands of schedules of the delivery protocol, a process killed between any two store calls: nothing is lost.

A schedule is its seed: `python -m tests.simulation --seed N` runs one again and prints it call by call.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.simulation.schedule import Schedule
from tests.simulation.variants import VARIANTS, Variant
from tests.simulation.world import World

SCHEDULES = 2_000


def first_caught(variant: Variant, schedules: int) -> tuple[int, list[str]] | None:
    """The first seed under which the checker finds something, and what."""
    with pytest.MonkeyPatch.context() as patch:
        variant.patch(patch)
        world = World()
        for seed in range(schedules):
            problems = Schedule(world, seed).run()
            if problems:
                return seed, problems
    return None


def test_no_schedule_loses_a_message_or_leaves_one_stuck() -> None:
    caught = first_caught(VARIANTS["sound"], SCHEDULES)

    assert caught is None, f"again: python -m tests.simulation --seed {caught[0]}\n" + "\n".join(caught[1])


@pytest.mark.parametrize(
    ("seed", "reached"),
    [
        (1, set()),
        (3, {"orders_failures"}),
        (5, {"orders_failures", "orders_dead"}),
        (8, {"orders_failures", "orders_dead"}),
    ],
    ids=["all is well", "a failure that is replayed", "a dead letter", "two dead letters"],
)
def test_a_process_may_die_between_any_two_store_calls(seed: int, reached: set[str]) -> None:
    world = World()
    whole = Schedule(world, seed, crash_at=0)
    assert whole.run() == []
    calls, copied = whole.calls, {line.rpartition(" ")[2] for line in whole.trace if line.endswith(".store_many")}
    assert copied == {f"{name}.store_many" for name in reached}

    for call in range(1, calls + 1):
        problems = Schedule(world, seed, crash_at=call).run()
        again = f"again: python -m tests.simulation --seed {seed} --crash-at {call}\n"
        assert problems == [], again + "\n".join(problems)
    assert calls > 50


@pytest.mark.parametrize("name", [name for name in VARIANTS if name != "sound"])
def test_a_protocol_that_is_broken_on_purpose_is_caught(name: str) -> None:
    caught = first_caught(VARIANTS[name], 5 * SCHEDULES)

    assert caught is not None
    seed, problems = caught
    assert any(VARIANTS[name].fault in problem for problem in problems), problems
    assert Schedule(World(), seed).run() == [], "it is not the variant that is at fault"


def test_a_schedule_takes_the_same_course_on_sqlite_as_on_the_model(tmp_path: Path) -> None:
    model, sqlite = World(), World(tmp_path)
    for seed in range(8):
        expected, seen = Schedule(model, seed), Schedule(sqlite, seed)

        assert (seen.run(), _unnamed(seen.trace)) == (expected.run(), _unnamed(expected.trace)), f"seed {seed}"
    sqlite.close()


def _unnamed(trace: list[str]) -> list[str]:
    """The trace without the identities of tables, which are drawn when they are made."""
    return [re.sub(r"[0-9a-f]{16}-\d+/", "", line) for line in trace]


def test_a_seed_is_the_whole_schedule() -> None:
    first, second = Schedule(World(), 7), Schedule(World(), 7)
    first.run()
    second.run()

    assert first.trace == second.trace
