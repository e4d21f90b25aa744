"""The catalog: the entities, the store of each, and which receiver holds which session."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects.mysql import LONGTEXT
from sqlalchemy.engine import URL, Connection

from homing.bus.entities import Entity, Queue, Subscription, Topic
from homing.bus.rules import DEFAULT_RULE, CorrelationFilter, FalseFilter, Filter, Rule, SqlFilter, TrueFilter
from homing.errors import EntityExistsError, NoSuchEntityError
from homing.ids import random_hex
from homing.message import JSON, decode, encode_json
from homing.row import NANOSECONDS
from homing.stores.database import Key, drop_store, open_database

Result = TypeVar("Result")

_KINDS: Mapping[str, type[Entity]] = {"queue": Queue, "topic": Topic, "subscription": Subscription}
_FILTERS: Mapping[str, type[Filter]] = {
    kind.__name__: kind for kind in (SqlFilter, TrueFilter, FalseFilter, CorrelationFilter)
}
_LONG = sa.Text().with_variant(LONGTEXT, "mysql", "mariadb")  # MySQL's TEXT ends at 64 KiB
_OPTIONS: dict[str, Any] = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4"}
MAX_HOPS = 4  # how often a message is forwarded, as at the service
_SLUG = 20  # characters of an entity's name in the name of its table


def _entities() -> sa.Table:
    return sa.Table(
        "homing__bus",
        sa.MetaData(),
        sa.Column("path", Key(255), primary_key=True),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("topic", Key(255)),
        sa.Column("forward_to", Key(255)),
        sa.Column("store", sa.String(40), nullable=False),
        sa.Column("properties", _LONG, nullable=False),
        sa.Column("rules", _LONG, nullable=False),
        **_OPTIONS,
    )


def _holds() -> sa.Table:
    return sa.Table(
        "homing__bus_holds",
        sa.MetaData(),
        sa.Column("store", sa.String(40), primary_key=True),
        sa.Column("what", Key(255), primary_key=True),
        sa.Column("owner", sa.String(36), nullable=False),
        sa.Column("time_expires", sa.BigInteger, nullable=False),
        **_OPTIONS,
    )


@dataclass(frozen=True)
class CatalogEntry:
    """An entity as it is kept: with the name of its store and, for a subscription, its rules."""

    entity: Entity
    store: str
    rules: tuple[Rule, ...] = ()

    @property
    def passes_on(self) -> bool:
        """Whether arriving messages go elsewhere."""
        return isinstance(self.entity, Topic) or self.entity.forward_to is not None


class Catalog:
    """The tables of the catalog. Each method that takes a connection runs in the caller's transaction."""

    def __init__(self, url: URL) -> None:
        self._entities, self._holds = _entities(), _holds()
        self.database = open_database(url, "bus", self._entities, self._holds)

    # -- reading -----------------------------------------------------------------------------------------------

    def get(self, path: str) -> CatalogEntry:
        return self.database.read(lambda connection: self.find(connection, path))

    def find(self, connection: Connection, path: str) -> CatalogEntry:
        row = connection.execute(sa.select(self._entities).where(self._entities.c.path == path.lower())).first()
        if row is None:
            raise NoSuchEntityError(f"unknown {_kind_of(path)} {path!r}: create it with an Administrator")
        return _entry(row)

    def subscriptions(self, connection: Connection, topic: str) -> list[CatalogEntry]:
        return self._some(connection, self._entities.c.topic == topic.lower())

    def forwarding_to(self, path: str) -> list[CatalogEntry]:
        return self.database.read(lambda c: self._some(c, self._entities.c.forward_to == path.lower()))

    def feeding(self, path: str) -> list[CatalogEntry]:
        """The entities that pass on to this one: its topic, and those that forward to it, the farthest first."""

        def work(connection: Connection) -> list[CatalogEntry]:
            found: dict[str, CatalogEntry] = {}
            self._collect(connection, path.lower(), found)
            return list(reversed(found.values()))

        return self.database.read(work)

    def _collect(self, connection: Connection, path: str, found: dict[str, CatalogEntry]) -> None:
        behind = self._some(connection, self._entities.c.forward_to == path)
        topic, separator, _ = path.partition("/subscriptions/")
        if separator:
            behind += self._some(connection, self._entities.c.path == topic)
        for entry in behind:
            behind_it = entry.entity.path.lower()
            if behind_it not in found:
                found[behind_it] = entry
                self._collect(connection, behind_it, found)

    def all(self, kind: type[Entity], topic: str | None = None) -> list[CatalogEntry]:
        c = self._entities.c
        where = c.kind == kind.__name__.lower()
        if topic is not None:
            where &= c.topic == topic.lower()
        return self.database.read(lambda connection: self._some(connection, where))

    def _some(self, connection: Connection, where: sa.ColumnElement[bool]) -> list[CatalogEntry]:
        statement = sa.select(self._entities).where(where).order_by(self._entities.c.path)
        return [_entry(row) for row in connection.execute(statement)]

    # -- changing ----------------------------------------------------------------------------------------------

    def create(self, entity: Entity) -> None:
        def work(connection: Connection) -> None:
            path = entity.path.lower()
            if self._some(connection, self._entities.c.path == path):
                raise EntityExistsError(f"a queue, topic or subscription {entity.path!r} exists already")
            rules: tuple[Rule, ...] = ()
            if isinstance(entity, Subscription):
                self.find(connection, entity.topic)
                rules = (Rule(DEFAULT_RULE),)
            entry = CatalogEntry(entity, _store_name(path), rules)
            connection.execute(self._entities.insert().values(path=path, store=entry.store, **_values(entry)))

        self.database.write(work)

    def change(self, path: str, change: Callable[[CatalogEntry], CatalogEntry]) -> None:
        def work(connection: Connection) -> None:
            changed = change(self.find(connection, path))
            mine = self._entities.c.path == path.lower()
            connection.execute(self._entities.update().where(mine).values(**_values(changed)))

        self.database.write(work)

    def update(self, entity: Entity) -> None:
        self.change(entity.path, lambda entry: replace(entry, entity=entity))

    def delete(self, path: str) -> list[str]:
        """Removes an entity, what depends on it, and all their messages; returns the names of the removed stores."""

        def work(connection: Connection) -> list[str]:
            gone = [self.find(connection, path), *self.subscriptions(connection, path)]
            for entry in gone:
                connection.execute(self._entities.delete().where(self._entities.c.path == entry.entity.path.lower()))
                connection.execute(self._holds.delete().where(self._holds.c.store == entry.store))
            return [entry.store for entry in gone]

        stores = self.database.write(work)
        self.database.write(lambda connection: self._drop(connection, stores))
        return stores

    def _drop(self, connection: Connection, stores: list[str]) -> None:
        # After the entities are gone: a process that still has one open gets an error about a missing table.
        for store in stores:
            drop_store(connection, store)
            drop_store(connection, dead_store(store))

    # -- holding a session, or the right to pass on ------------------------------------------------------------

    def hold(self, store: str, what: str, owner: str, seconds: float) -> bool:
        """Takes the hold for `owner` for so many seconds; whether it got it."""
        now = self.database.now()
        row = {"store": store, "what": what, "owner": owner, "time_expires": now + int(seconds * NANOSECONDS)}

        def work(connection: Connection) -> bool:
            mine = (self._holds.c.store == store) & (self._holds.c.what == what)
            free = (self._holds.c.owner == owner) | (self._holds.c.time_expires <= now)
            if connection.execute(self._holds.update().where(mine, free).values(**row)).rowcount:
                return True
            insert = self.database.dialect.upsert(self._holds, ["store", "what"], {"store": lambda new: new["store"]})
            connection.execute(insert, [row])
            found = connection.execute(sa.select(self._holds.c.owner).where(mine)).scalar_one()
            return bool(found == owner)

        return self.database.write(work)

    def keep(self, store: str, what: str, owner: str, seconds: float) -> bool:
        """Extends the hold of `owner` by so many seconds; whether it still had it."""
        c, now = self._holds.c, self.database.now()
        mine = (c.store == store) & (c.what == what) & (c.owner == owner) & (c.time_expires > now)
        statement = self._holds.update().where(mine).values(time_expires=now + int(seconds * NANOSECONDS))
        return bool(self.database.write(lambda connection: connection.execute(statement).rowcount))

    def let_go(self, store: str, what: str, owner: str) -> None:
        c = self._holds.c
        statement = self._holds.delete().where(c.store == store, c.what == what, c.owner == owner)
        self.database.write(lambda connection: connection.execute(statement))

    def held(self, store: str) -> set[str]:
        """What is held of this store at the moment, by any receiver."""
        c = self._holds.c
        statement = sa.select(c.what).where(c.store == store, c.time_expires > self.database.now())
        return self.database.read(lambda connection: set(connection.execute(statement).scalars()))

    def close(self) -> None:
        self.database.close()


def dead_store(store: str) -> str:
    return f"{store}_dead"


def _store_name(path: str) -> str:
    """Readable, and never used before: a new entity under an old name does not find old messages."""
    slug = re.sub(r"[^a-z0-9]+", "_", path.replace("/subscriptions/", "_"))[:_SLUG].strip("_")
    return f"bus_{slug}_x{random_hex(8)}"


def _kind_of(path: str) -> str:
    return "subscription" if "/subscriptions/" in path else "queue or topic"


def _values(entry: CatalogEntry) -> dict[str, Any]:
    entity = entry.entity
    forward_to = None if isinstance(entity, Topic) else entity.forward_to
    return {
        "kind": type(entity).__name__.lower(),
        "topic": entity.topic.lower() if isinstance(entity, Subscription) else None,
        "forward_to": None if forward_to is None else forward_to.lower(),
        "properties": encode_json(asdict(entity)),
        "rules": encode_json([_rule_record(rule) for rule in entry.rules]),
    }


def _entry(row: Any) -> CatalogEntry:
    entity: Entity = _KINDS[row.kind](**decode(JSON, row.properties))
    rules = [
        Rule(record["name"], _FILTERS[record["kind"]](**record["filter"]), record["action"])
        for record in decode(JSON, row.rules)
    ]
    return CatalogEntry(entity, row.store, tuple(rules))


def _rule_record(rule: Rule) -> dict[str, Any]:
    return {
        "name": rule.name,
        "kind": type(rule.filter).__name__,
        "filter": asdict(rule.filter),
        "action": rule.action,
    }
