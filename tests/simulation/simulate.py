"""Simulations: the product put into a world, for as long as its schedules are carried out."""

from __future__ import annotations

import gc
import logging
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Protocol

import pytest

from tests import memory_folders
from tests.simulation.harms import Shape
from tests.simulation.hub import Gone
from tests.simulation.schedule import Schedule
from tests.simulation.variants import VARIANTS, Variant
from tests.simulation.world import World, time_is_up

_COLLECT = 200  # schedules


class ScheduleOf(Protocol):
    def __call__(self, seed: int, *, crash_at: int | None = None) -> Schedule: ...


def _schedule(world: World, shape: Shape, seed: int, *, crash_at: int | None = None) -> Schedule:
    if seed % _COLLECT == 0:
        gc.collect()
    return Schedule(world, seed, crash_at=crash_at, shape=shape)


def _report_unraisable(report: Callable[[Any], Any], what: Any) -> None:
    """A generator of a process that was killed may not do anything when it is taken away: that is as it should be."""
    if what.exc_type is not Gone:
        report(what)


@contextmanager
def simulation(variant: Variant = VARIANTS["sound"]) -> Iterator[ScheduleOf]:
    """Makes the schedule of a seed, any number of times, with the product in this variant."""
    disabled = logging.root.manager.disable
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        stack.callback(memory_folders.remove, folder := memory_folders.make("homing-simulation-"))
        logging.disable(logging.CRITICAL)  # thousands of deaths have much to say
        patch.setattr(sys, "unraisablehook", partial(_report_unraisable, sys.unraisablehook))
        gc.disable()  # of what a schedule makes, little is ever free: see below
        world = World(folder)
        before = signal.signal(signal.SIGUSR1, time_is_up)
        try:
            world.install(patch)
            variant.patch(patch)
            yield partial(_schedule, world, variant.shape)
        finally:
            signal.signal(signal.SIGUSR1, before)
            world.databases.close()
            logging.disable(disabled)
            gc.enable()
