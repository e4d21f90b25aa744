"""Places at which a process of a pipeline can be held, so that whoever kills it knows exactly where it was.

`touch <home>/<pipeline>/hold.<place>` asks for it. The first process that comes by takes the request, by renaming it to
`held.<place>.<pid>`, and waits until that file is removed.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

HOME = Path(os.environ["MATRIX_HOME"])
LONGEST = 400.0  # seconds


def hold(pipeline: str, place: str, which: object = "") -> None:
    name = f"{place}{which}"
    held = HOME / pipeline / f"held.{name}.{os.getpid()}"
    try:
        (HOME / pipeline / f"hold.{name}").rename(held)
    except FileNotFoundError:
        return
    ends = time.monotonic() + LONGEST
    while held.exists() and time.monotonic() < ends:
        time.sleep(0.05)


def hold_in_stores() -> None:
    """Makes places of what tasks do with stores: `look` before a claim, `claimed` after it was committed, and
    `copied<store>` between copying messages to another store and acknowledging them."""
    from homing.delivery.settlement import Settler
    from homing.stores.sql import SqlStore

    lease_batch, copy = SqlStore.lease_batch, Settler._copy

    def held_lease_batch(self: SqlStore, *args: Any, **kwargs: Any) -> Any:
        hold(self.name, "look")
        leased = lease_batch(self, *args, **kwargs)
        hold(self.name, "claimed")
        return leased

    def held_copy(self: Settler, copies: Any, to: SqlStore) -> None:
        copy(self, copies, to)
        hold(self.store_name, "copied", to.name)

    SqlStore.lease_batch, Settler._copy = held_lease_batch, held_copy  # type: ignore[method-assign]
