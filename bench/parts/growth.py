"""Growth: a claim of 100 beside more and more messages that are none of its business, to the same at 10,000."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import datetime, timedelta, timezone

from bench.content import payload
from bench.contestants.contestant import timed
from bench.figures import Row
from bench.progress import say
from bench.rounds import Case, Comparison, rows, take_turns
from bench.scale import Scale
from bench.services import Services
from homing import Message, open_store
from homing.stores.sql import SqlStore

#: At most this many times the cost at 10,000.
BAR = 1.3
SMALL = 10_000
CLAIM = 100


def growth(scale: Scale, services: Services) -> Iterator[Row]:
    folder = services.folder
    yield from _flatness("SQLite", lambda name: f"sqlite:///{folder}/{name}.db?store=flat", scale)
    database = services.postgresql.empty_database()
    yield from _flatness("PostgreSQL", lambda name: f"{database}?store={name}", scale)


def _flatness(server: str, url: Callable[[str], str], scale: Scale) -> Iterator[Row]:
    with ExitStack() as stack:
        cases: dict[str, Case] = {}
        for condition in ("few", "waiting", "leased", "scheduled", "acknowledged", "dead"):
            store = stack.enter_context(open_store(url(f"flat_{condition}")))
            assert isinstance(store, SqlStore)
            waiting = scale.waiting if condition == "waiting" else SMALL
            say(f"{server}: {waiting:,} waiting" + _beside(condition, scale.beside))
            if condition not in ("few", "waiting"):
                _bring(store, condition, scale.beside)
            _fill(store, waiting)
            what = f"{server}: claim of {CLAIM}, {waiting:,} waiting" + _beside(condition, scale.beside)
            cases[condition] = Case(what, lambda store=store: _claim_seconds(store))  # type: ignore[misc]
        take_turns(list(cases.values()), scale.claims)
    few = cases.pop("few")
    to = f"itself at {SMALL:,}"
    yield from rows("growth", [Comparison(case.name, case, to, few, BAR) for case in cases.values()])


def _beside(condition: str, count: int) -> str:
    return "" if condition in ("few", "waiting") else f" beside {count:,} {condition}"


def _fill(store: SqlStore, count: int) -> None:
    one = payload()
    for _ in range(count // SMALL):
        store.store_many([one] * SMALL)


def _bring(store: SqlStore, condition: str, count: int) -> None:
    """Brings that many messages into another state."""
    if condition == "scheduled":
        later = datetime.now(timezone.utc) + timedelta(days=1)
        for start in range(0, count, SMALL):
            store.store_many([Message(f"s{start + n}", "x", scheduled_at=later) for n in range(SMALL)])
        return
    for _ in range(count // SMALL):
        store.store_many(["x"] * SMALL)
        claimed = store.claim(SMALL, lease=3600)
        if condition == "acknowledged":
            store.settle(claimed)
        elif condition == "dead":
            change = store._settlements.bury("bench", None)  # noqa: SLF001 - one by one would take all day
            store._settlements.apply([(claimed, change)])  # noqa: SLF001


def _claim_seconds(store: SqlStore) -> float:
    claimed: list[Message] = []
    seconds = timed(lambda: claimed.extend(store.claim(CLAIM, lease=3600)))
    assert len(claimed) == CLAIM
    return seconds
