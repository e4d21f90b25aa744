"""The product, broken on purpose: what the simulation must catch.

A variant turns round the order of two steps, or takes a guard away, and leaves the rest of the product as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from homing.delivery import intake, recorder
from homing.delivery.settlement import Settler
from homing.delivery.step import FlowRun
from homing.ledger import DELIVERED
from homing.spark import jobs
from homing.spark.dataframe_flow import DataFrameFlow
from homing.stores.sql import SqlLedger, SqlStore
from tests.simulation.harms import ANY, Shape
from tests.simulation.hub import KILL, STALL
from tests.simulation.runs import ALONE
from tests.simulation.world import ALL


def acknowledge_before_the_copy(patch: pytest.MonkeyPatch) -> None:
    """A failed message is acknowledged, and only then copied to where it is to wait."""
    copy, finish = Settler._copy, Settler._finish

    def copy_later(self: Any, copies: Any, to: Any) -> set[str]:
        self._late = [*getattr(self, "_late", []), (copies, to)]
        return set(copies)

    def finish_first(self: Any, *args: Any) -> None:
        finish(self, *args)
        late, self._late = getattr(self, "_late", []), []
        for one in late:
            copy(self, *one)

    patch.setattr(Settler, "_copy", copy_later)
    patch.setattr(Settler, "_finish", finish_first)


def finish_the_dead_before_the_copy(patch: pytest.MonkeyPatch) -> None:
    """What a store gave up is finished there, and only then copied to the dead-letter store."""
    copy, move_dead, finish_dead = Settler._copy, Settler.move_dead, SqlStore.finish_dead
    late: list[Callable[[], object]] = []
    moving = False

    def copy_later(self: Settler, copies: Any, to: Any) -> set[str]:
        if not moving:
            return copy(self, copies, to)
        late.append(lambda: copy(self, copies, to))
        return set(copies)

    def finish_first(self: SqlStore, *args: Any) -> None:
        finish_dead(self, *args)
        waiting, late[:] = list(late), []
        for one in waiting:
            one()

    def move(self: Settler) -> int:
        nonlocal moving
        moving = True
        late.clear()
        try:
            return move_dead(self)
        finally:
            moving = False

    patch.setattr(Settler, "_copy", copy_later)
    patch.setattr(Settler, "move_dead", move)
    patch.setattr(SqlStore, "finish_dead", finish_first)


def acknowledge_before_taking_in(patch: pytest.MonkeyPatch) -> None:
    """The broker hears that a message was taken in before it was."""
    store = intake._store

    def too_late(group: Any, source: Any, target: Any) -> Any:
        for message in group:
            source.acknowledge(message)
        return store(group, source, target)

    patch.setattr(intake, "_store", too_late)


def record_without_a_fence(patch: pytest.MonkeyPatch) -> None:
    """Whoever was given up goes on recording, and so goes on delivering."""
    patch.setattr(SqlLedger, "_check", lambda *_: None)


def note_before_delivering(patch: pytest.MonkeyPatch) -> None:
    """The ledger is told of a delivery that is yet to be made."""
    deliver = FlowRun._deliver

    def noted_first(self: FlowRun, states: Any, messages: Any) -> None:
        for _, entry in messages:
            self._recorder.add(entry._replace(state=DELIVERED))
        deliver(self, states, messages)

    patch.setattr(FlowRun, "_deliver", noted_first)


def note_the_frame_before_handing_it_over(patch: pytest.MonkeyPatch) -> None:
    """The same for a destination that takes DataFrames."""
    hand_over = DataFrameFlow._hand_over

    def noted_first(self: DataFrameFlow, flow: Any, frame: Any, some: Any, counter: Any) -> Any:
        self._record(head.entry(flow.name, DELIVERED) for head in some)
        return hand_over(self, flow, frame, some, counter)

    patch.setattr(DataFrameFlow, "_hand_over", noted_first)


def nobody_keeps_the_lease(patch: pytest.MonkeyPatch) -> None:
    """The lease of a job that takes long is not renewed."""
    patch.setattr(jobs.LeaseKeeper, "_renew", lambda self: math.inf)


def chunks_too_large(patch: pytest.MonkeyPatch) -> None:
    """An executor records its deliveries when all are made."""
    patch.setattr(recorder, "ENTRIES_PER_FLUSH", 1_000)
    patch.setattr(recorder, "FLUSH_EVERY_SECONDS", 1e9)
    patch.setattr(recorder.Recorder, "_flush_now_and_then", lambda self: self._ended.wait())


@dataclass(frozen=True)
class Variant:
    """What is changed before schedules are run, and what the checker must say then."""

    fault: str = ""
    patch: Callable[[pytest.MonkeyPatch], None] = lambda _: None
    #: Of the schedules in which it shows, should it show at all.
    shape: Shape = ANY


VARIANTS: dict[str, Variant] = {
    "sound": Variant(),
    "acknowledge-first": Variant("lost: ", acknowledge_before_the_copy),
    "finish-the-dead-first": Variant("lost: ", finish_the_dead_before_the_copy, Shape(hammered=True, fault=KILL)),
    "acknowledge-before-intake": Variant("lost: ", acknowledge_before_taking_in, Shape(takes_in=True, fault=KILL)),
    "no-fence": Variant("duplicates where", record_without_a_fence, Shape(size=6, fault=STALL)),
    "note-first": Variant("lost: ", note_before_delivering, Shape(how=ALONE, fault=KILL)),
    "note-the-frame-first": Variant("lost: ", note_the_frame_before_handing_it_over, Shape(on_frames=ALL, fault=KILL)),
    "nobody-keeps-the-lease": Variant("has lost its lease", nobody_keeps_the_lease, Shape(slow=True)),
    "chunks-too-large": Variant("duplicates where", chunks_too_large, Shape(how=ALONE, size=6, fault=KILL, at="send")),
}
