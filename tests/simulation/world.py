"""The world of one schedule: a virtual clock, the real stores on SQLite, destinations that keep score, and the checker.

Everything that decides what happens is drawn from the schedule's seed.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from homing.delivery import PipelineStores, keep_books
from homing.delivery.records import dead_letter_id
from homing.stores.sql import SqlStore
from tests.simulation.model import ModelLedger, ModelStore

FLOWS = ("lake", "crm")
NANOSECONDS = 1_000_000_000
#: How many deliveries an executor makes before it notes them: what one fault may cost in duplicates.
CHUNK = 2
ALWAYS = 1_000
MAX_DELIVERIES = 4


class Clock:
    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += int(seconds * NANOSECONDS)


class RefusedError(Exception):
    """A destination's no."""


class Killed(BaseException):
    """The end of a simulated process: nothing in the product catches it."""


@dataclass
class Plan:
    """What is to become of one message: the right answer, known beforehand."""

    dropped: bool = False
    #: How often a flow refuses the message before it takes it; ALWAYS makes it a poison message.
    refusals: dict[str, int] = field(default_factory=dict)
    #: How often a flow takes the message and fails nevertheless.
    late_refusals: dict[str, int] = field(default_factory=dict)
    filtered: frozenset[str] = frozenset()
    #: The flow in which it kills whoever handles it.
    kills: str | None = None

    @property
    def poison(self) -> bool:
        return self.kills is not None or ALWAYS in self.refusals.values()

    @property
    def harmless(self) -> bool:
        return not (self.kills or self.refusals or self.late_refusals)

    @classmethod
    def draw(cls, rng: random.Random) -> Plan:
        kind = rng.choices(
            ["good", "dropped", "filtered", "refused", "poison", "late", "killer"], [8, 1, 1, 3, 2, 1, 1]
        )[0]
        flow = rng.choice(FLOWS)
        return {
            "good": cls,
            "dropped": lambda: cls(dropped=True),
            "filtered": lambda: cls(filtered=frozenset({flow})),
            "refused": lambda: cls(refusals={flow: rng.randint(1, 2)}),
            "poison": lambda: cls(refusals={flow: ALWAYS}),
            "late": lambda: cls(late_refusals={flow: 1}),
            "killer": lambda: cls(kills=flow),
        }[kind]()


class World:
    """Made once and emptied before each schedule: the tables stay, the clock does not.

    In `folder`, if one is given, the stores are SQLite's; otherwise the model's.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.clock = Clock()
        self.stores = self._modelled() if folder is None else self._sqlite(folder)
        self.reset()

    def _modelled(self) -> PipelineStores:
        self._parts: tuple[Any, ...] = (
            ModelStore("orders", self.clock, max_deliveries=MAX_DELIVERIES),
            ModelStore("orders_failures", self.clock, max_deliveries=MAX_DELIVERIES),
            ModelStore("orders_dead", self.clock),
            ModelLedger(self.clock),
        )
        return PipelineStores(*self._parts)

    def _sqlite(self, folder: Path) -> PipelineStores:
        url = sa.make_url(f"sqlite:///{folder}/simulation.db")
        store = SqlStore(url, "orders", clock=self.clock, max_deliveries=MAX_DELIVERIES)
        dead_letters = SqlStore(url, "orders_dead", clock=self.clock)
        stores = PipelineStores(store, store.sibling("orders_failures"), dead_letters, store.ledger())
        self._parts = (store, stores.failures, dead_letters)
        for opened in self._parts:
            # The machine itself does not die here, so nothing need be forced to the disk.
            sa.event.listen(opened._database._engine, "connect", _without_fsync)
            opened.count()
        stores.ledger.known(["make the tables"])
        return stores

    def reset(self) -> None:
        self.clock.now = 1_700_000_000 * NANOSECONDS
        if isinstance(self.stores.store, SqlStore):
            self._empty(self.stores.store)
        else:
            for part in self._parts:
                part.reset()
        self.plans: dict[str, Plan] = {}
        self.accepted: set[str] = set()
        self.sent: Counter[tuple[str, str]] = Counter()
        self.asked: Counter[tuple[str, str]] = Counter()
        self.published: dict[str, set[str]] = {}
        #: How many deliveries may be made twice: each fault adds what it can cost.
        self.allowed_duplicates = 0

    def _empty(self, store: SqlStore) -> None:
        ledger = self.stores.ledger
        tables = [*(part._table for part in self._parts), ledger._rows, ledger._steps]
        store._database.write(lambda connection: [connection.execute(table.delete()) for table in tables])
        for part in self._parts:
            part._claims._finder._low = 0  # where the last search began: that was another time

    def close(self) -> None:
        for part in self._parts[:3]:
            part.close()

    def send(self, message_id: str, flow: str) -> None:
        """The destination: takes the message, refuses it, or both."""
        plan = self.plans[message_id]
        self.asked[message_id, flow] += 1
        asked = self.asked[message_id, flow]
        if plan.kills == flow:
            raise Killed
        if asked <= plan.refusals.get(flow, 0):
            raise RefusedError(f"{flow} does not want {message_id}")
        self.sent[message_id, flow] += 1
        if asked <= plan.late_refusals.get(flow, 0):
            self.allowed_duplicates += 1
            raise RefusedError(f"{flow} took {message_id} and failed then")

    # -- the checker -------------------------------------------------------------------------------------------

    def _waiting(self) -> tuple[set[str], set[str]]:
        """Which accepted messages are in the store or the failure store, and which are dead letters."""
        stores, ids = self.stores, self.accepted
        names = {ref.name: one for one, _, ref in stores.store.states(ids)}
        letters = {dead_letter_id(stores.store.name, name): one for name, one in names.items()}
        dead = {letters[letter] for letter in stores.dead_letters.present(list(letters))}
        failed = {names[name] for name in stores.failures.present(list(names))}
        return stores.store.present(ids) | failed, dead

    def _finished(self, message_id: str) -> bool:
        plan = self.plans[message_id]
        return plan.dropped or all(self.sent[message_id, flow] or flow in plan.filtered for flow in FLOWS)

    def lost(self) -> list[str]:
        """Accepted messages that are in no store and not where they were to go: at no time may there be one."""
        waiting, dead = self._waiting()
        return sorted(one for one in self.accepted if one not in waiting | dead and not self._finished(one))

    def problems(self, faults: int) -> list[str]:
        """What is wrong after the last run of a schedule; nothing, if all is well."""
        waiting, dead = self._waiting()
        found = [f"lost: {one}" for one in self.lost()]
        found += [f"stuck: {one} still waits" for one in sorted(waiting)]
        found += [f"unexpected: {one} at {flow}" for one, flow in self.sent if one not in self.plans]
        for one in sorted(self.accepted):
            plan = self.plans[one]
            if plan.poison and one not in dead:
                found.append(f"no dead letter for {one}, which never succeeds")
            if one in dead and plan.harmless and not faults:
                found.append(f"{one} is a dead letter, and nothing was wrong with it")
        extra = sum(count - 1 for count in self.sent.values() if count > 1)
        if extra > self.allowed_duplicates:
            found.append(f"{extra} duplicates where {self.allowed_duplicates} are accounted for: {dict(self.sent)}")
        found += self._unexplained()
        books = keep_books(self.stores, FLOWS)
        if not books.balanced:
            found.append(f"the books do not balance:\n{books}")
        return found

    def _unexplained(self) -> list[str]:
        letters: list[Any] = self.stores.dead_letters.browse(1000)
        return [f"no reason: dead letter {letter.id}" for letter in letters if not letter.dead_letter_reason]


def _without_fsync(connection: Any, _record: Any) -> None:
    connection.execute("PRAGMA synchronous=OFF")
