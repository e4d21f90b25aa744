"""Stores: putting messages in, and taking and acknowledging them, beside the bare driver and the peers.

A queue that hands out one message at a time is measured so, and stands beside each of our sizes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

from bench.figures import Row
from bench.player import Player
from bench.rounds import Case, Comparison, rows, take_turns
from bench.scale import Scale
from bench.services import Services

#: Ours takes at most this many times as long as the bare driver, and as pgmq.
TO_BARE, TO_PGMQ = 1 / 0.7, 1 / 1.3
SIZES = (1, 100, 1_000)
#: Where the bars are meant to hold.
LARGE = 1_000
_COUNTS = {1: 50, 100: 500, 1_000: 1_000}
_ONE_BY_ONE = ("litequeue", "procrastinate", "celery", "dramatiq")


class Field:
    """The contestants of one server, and what was asked of them so far: each thing once, however often compared."""

    def __init__(self, part: str, scale: Scale) -> None:
        self._part, self._scale = part, scale
        self._players: dict[str, Player] = {}
        self._cases: dict[tuple[str, str, int], Case] = {}
        self._comparisons: list[Comparison] = []
        self._stack = ExitStack()

    def join(self, name: str, contestant: str, url: str) -> None:
        self._players[name] = self._stack.enter_context(Player(contestant, url))

    def enqueue(self, ours: str, *others: str) -> None:
        for other in others:
            self._compare("enqueue one", (ours, other), "enqueue", 1)

    def bulk(self, ours: str, *others: str, bars: dict[str, float]) -> None:
        for other in others:
            self._compare("enqueue 1,000 in bulk", (ours, other), "bulk", LARGE, bars.get(other))

    def take(self, ours: str, *others: str, bars: dict[str, float]) -> None:
        for size in SIZES:
            for other in others:
                bar = bars.get(other) if size == LARGE else None
                self._compare(f"claim + settle {size:,}", (ours, other), "take", size, bar)

    def run(self) -> Iterator[Row]:
        with self._stack:
            take_turns(list(self._cases.values()), self._scale.rounds)
        yield from rows(self._part, self._comparisons)

    def _compare(self, what: str, names: tuple[str, str], verb: str, size: int, bar: float | None = None) -> None:
        ours, theirs = (self._case(name, verb, size) for name in names)
        self._comparisons.append(Comparison(f"{names[0]}: {what}", ours, names[1], theirs, bar))

    def _case(self, name: str, verb: str, size: int) -> Case:
        player = self._players[name]
        count = self._scale.taken if verb == "take" and size == LARGE else _COUNTS[size]
        if verb == "take" and player.name in _ONE_BY_ONE:
            size, count = 1, 100
        elif verb == "bulk" and player.name in _ONE_BY_ONE and player.name != "litequeue":
            count = 200  # no bulk to speak of, and slow
        key = (name, verb, size)
        if key not in self._cases:
            self._cases[key] = Case(f"{name}, {verb} {size}", lambda: player.seconds(verb, count, size))
        return self._cases[key]


def sqlite(scale: Scale, services: Services) -> Iterator[Row]:
    folder = services.folder
    field = Field("SQLite", scale)
    field.join("Homing", "homing", f"sqlite:///{folder}/kept.db?store=bench")
    field.join("Homing, removing", "homing", f"sqlite:///{folder}/removed.db?store=bench&acknowledged=removed")
    field.join("sqlite3, UPDATE", "sqlite3-update", f"{folder}/update.db")
    field.join("sqlite3, DELETE", "sqlite3-delete", f"{folder}/delete.db")
    field.join("litequeue", "litequeue", f"{folder}/litequeue.db")
    field.enqueue("Homing", "sqlite3, UPDATE", "litequeue")
    field.bulk("Homing", "sqlite3, UPDATE", "litequeue", bars={"sqlite3, UPDATE": TO_BARE})
    field.take("Homing", "sqlite3, UPDATE", "litequeue", bars={"sqlite3, UPDATE": TO_BARE})
    field.take("Homing, removing", "sqlite3, DELETE", bars={"sqlite3, DELETE": TO_BARE})
    yield from field.run()


def postgresql(scale: Scale, services: Services) -> Iterator[Row]:
    def database(options: str = "", *, driver: str = "") -> str:
        return services.postgresql.empty_database().replace("+psycopg", driver) + options

    field = Field("PostgreSQL", scale)
    field.join("Homing", "homing", database("?store=bench", driver="+psycopg"))
    field.join("Homing, removing", "homing", database("?store=bench&acknowledged=removed", driver="+psycopg"))
    field.join("psycopg, UPDATE", "psycopg-update", database())
    field.join("psycopg, DELETE", "psycopg-delete", database())
    field.join("psycopg, COPY", "psycopg-copy", database())
    field.join("pgmq client, archive", "pgmq-client-archive", database())
    field.join("pgmq client, delete", "pgmq-client-delete", database())
    field.join("pgmq SQL, archive", "pgmq-sql-archive", database())
    field.join("pgmq SQL, delete", "pgmq-sql-delete", database())
    field.join("PGQueuer", "pgqueuer", database())
    field.join("procrastinate", "procrastinate", database())
    others = ("pgmq client, archive", "pgmq SQL, archive", "PGQueuer", "procrastinate")
    bars = {"psycopg, UPDATE": TO_BARE, "psycopg, DELETE": TO_BARE}
    bars |= {"pgmq client, archive": TO_PGMQ, "pgmq client, delete": TO_PGMQ}
    field.enqueue("Homing", "psycopg, UPDATE", *others)
    field.bulk("Homing", "psycopg, UPDATE", "psycopg, COPY", *others, bars={"psycopg, UPDATE": TO_BARE})
    field.take("Homing", "psycopg, UPDATE", *others, bars=bars)
    field.take("Homing, removing", "psycopg, DELETE", "pgmq client, delete", "pgmq SQL, delete", bars=bars)
    yield from field.run()


def rabbitmq(scale: Scale, services: Services) -> Iterator[Row]:
    url = services.rabbitmq.url
    field = Field("RabbitMQ", scale)
    field.join("Homing, quorum", "homing-rabbitmq", f"{url}?store=quorum&queue_type=quorum")
    field.join("Homing, classic", "homing-rabbitmq", f"{url}?store=classic&queue_type=classic")
    field.join("pika, quorum", "pika-quorum", url)
    field.join("pika, classic", "pika-classic", url)
    field.join("Celery", "celery", url)
    field.join("Dramatiq", "dramatiq", url)
    for kind, others in (("quorum", ()), ("classic", ("Celery", "Dramatiq"))):
        ours, bare = f"Homing, {kind}", f"pika, {kind}"
        field.enqueue(ours, bare, *others)
        field.bulk(ours, bare, *others, bars={bare: TO_BARE})
        field.take(ours, bare, *others, bars={bare: TO_BARE})
    yield from field.run()
