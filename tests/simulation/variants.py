"""The protocol, deliberately broken: what the simulation must catch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from homing.delivery.settling import Settling
from homing.stores.sql import SqlLedger
from tests.simulation.model import ModelLedger
from tests.simulation.processes import Process


def acknowledge_before_the_copy(patch: pytest.MonkeyPatch) -> None:
    """A failed message is acknowledged, and only then copied to where it is to wait."""

    def move(self: Settling, held: Any, moving: Any, found: Any, to: Any) -> tuple[set[str], set[str]]:
        gone = set[str]()
        for copies in self._copies(held, moving, found, to):
            self._finish(held, copies)
            self._copy(copies, to)
            gone |= copies.keys()
        return gone, set()

    patch.setattr(Settling, "_move", move)


def ledger_without_a_fence(patch: pytest.MonkeyPatch) -> None:
    """Whoever was given up goes on recording, and so goes on delivering."""
    for ledger in (ModelLedger, SqlLedger):
        patch.setattr(ledger, "_check", lambda *_: None)


def note_before_delivering(patch: pytest.MonkeyPatch) -> None:
    """The ledger is told of a delivery that is yet to be made."""
    send = Process._send

    def noted_first(self: Process, message_id: str, flow: str) -> str:
        rows = [about for about, _ in self._rows(flow) if about.message_id == message_id]
        fence = self.ledger.open_step(self.run_id, f"note.{flow}", 600)
        self.ledger.record(fence, [one._replace(state="delivered") for one in rows])
        self.ledger.close_step(fence)
        return send(self, message_id, flow)

    patch.setattr(Process, "_send", noted_first)


@dataclass(frozen=True)
class Variant:
    """What is changed before a schedule is run, and what the checker must say then."""

    fault: str = ""
    patch: Callable[[pytest.MonkeyPatch], None] = lambda _: None


VARIANTS = {
    "sound": Variant(),
    "acknowledge-first": Variant("lost", acknowledge_before_the_copy),
    "no-fence": Variant("duplicates where", ledger_without_a_fence),
    "note-first": Variant("lost: ", note_before_delivering),
}
