"""Thousands of schedules of the product in a simulated world, a process killed at any durable step: nothing is lost.

A schedule is its seed: `python -m tests.simulation --seed N` runs one again and prints it step by step.
"""

from __future__ import annotations

import pytest

from tests.simulation.coverage import KINDS, Coverage
from tests.simulation.simulate import ScheduleOf, simulation
from tests.simulation.variants import VARIANTS, Variant

pytestmark = pytest.mark.timeout(1800)  # half a minute each, on a machine that has nothing else to do

BLOCKS, BLOCK = 20, 500
#: How many schedules a variant that is broken on purpose may pass before it is caught.
PATIENCE = 300


class TestSchedules:
    @pytest.mark.parametrize("first", range(0, BLOCKS * BLOCK, BLOCK))
    def test_no_schedule_loses_a_message_or_leaves_one_stuck(self, first: int) -> None:
        coverage = Coverage()
        with simulation() as schedule_of:
            for seed in range(first, first + BLOCK):
                schedule = schedule_of(seed)
                problems = schedule.run()
                assert problems == [], f"again: python -m tests.simulation --seed {seed}\n" + "\n".join(problems)
                coverage.note(schedule)
        assert coverage.missing() == [], "never happened, so nothing is known of it"


class TestDeaths:
    @pytest.mark.parametrize("seed", [1, 3])
    def test_a_process_may_die_at_any_durable_step(self, seed: int) -> None:
        with simulation() as schedule_of:
            whole = schedule_of(seed, crash_at=0)
            assert whole.run() == []
            for step in range(1, whole.steps + 1):
                problems = schedule_of(seed, crash_at=step).run()
                again = f"again: python -m tests.simulation --seed {seed} --crash-at {step}\n"
                assert problems == [], again + "\n".join(problems)
        assert whole.steps > 30


class TestVariants:
    @pytest.mark.parametrize("name", [name for name in VARIANTS if name != "sound"])
    def test_a_product_that_is_broken_on_purpose_is_caught(self, name: str) -> None:
        with simulation(VARIANTS[name]) as schedule_of:
            seed, problems = _first_caught(schedule_of)

        assert any(VARIANTS[name].fault in problem for problem in problems), problems
        with simulation(Variant(shape=VARIANTS[name].shape)) as schedule_of:
            assert schedule_of(seed).run() == [], "it is not the variant that is at fault"


def _first_caught(schedule_of: ScheduleOf) -> tuple[int, list[str]]:
    """The first seed under which the checker finds something, and what."""
    for seed in range(PATIENCE):
        problems = schedule_of(seed).run()
        if problems:
            return seed, problems
    raise AssertionError(f"{PATIENCE} schedules found nothing wrong with it")


def test_a_seed_is_the_whole_schedule() -> None:
    with simulation() as schedule_of:
        first = schedule_of(7)
        first.run()
        for other in range(20):
            schedule_of(other).run()
        second = schedule_of(7)
        second.run()

    assert first.trace == second.trace


def test_what_never_happened_is_named() -> None:
    coverage = Coverage()
    with simulation() as schedule_of:
        schedule = schedule_of(7)
        schedule.run()
    coverage.note(schedule)

    assert set(coverage.missing()) == KINDS - {what for what, times in schedule.seen.items() if times}
