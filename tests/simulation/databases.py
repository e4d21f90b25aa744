"""The SQL store on SQLite: real tables and statements, with a turn for everybody before each transaction."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from homing.errors import StoreUnavailableError
from homing.ledger import PART
from homing.stores.sql import SqlLedger, SqlStore
from homing.stores.sql.database import Database
from tests.simulation.virtual import Here

AWAY, ANSWER_LOST, NO_MEMORY = "AWAY", "ANSWER LOST", "NO MEMORY"

Work = Callable[[Any], Any]


class SimulatedStore(SqlStore):
    """Opened once and used by all processes; closing it ends nobody else's use."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._siblings: dict[str, SqlStore] = {self.name: self}
        self._one_ledger: SqlLedger | None = None

    def sibling(self, name: str) -> SqlStore:
        if name not in self._siblings:
            self._siblings[name] = SimulatedStore(self._url, name, options=self._options, clock=self._clock)
        return self._siblings[name]

    def ledger(self) -> SqlLedger:
        self._one_ledger = self._one_ledger or super().ledger()
        return self._one_ledger

    def close(self) -> None:
        pass

    def start_over(self, **properties: Any) -> None:
        """Forgets what it remembers of another time, and has these properties from now on."""
        self._live.given = self._live._current = self._live.given.changed(properties)
        self._live._looked = None
        self._finder._low, self._finder._swept = 0, 0.0
        self._claims._strays._looked, self._claims._strays._last = None, 0
        self._in_flight.clear()
        for store in self._siblings.values():
            vars(store).pop("identity", None)  # asked for once by whoever opens a store


class Databases:
    """Some databases by name, and who cannot be reached now."""

    def __init__(self, here: Here, folder: Path, names: tuple[str, ...]) -> None:
        self._here = here
        self.away: set[str] = set()
        self._links: dict[str, Link] = {}
        self._of: dict[Database, Link] = {}
        self.urls = {name: sa.make_url(f"sqlite:///{folder}/{name}.db") for name in names}
        self.stores: list[SimulatedStore] = []
        self._filled: dict[str, list[str]] = {}

    def open(self, database: str, name: str, **properties: Any) -> SimulatedStore:
        store = SimulatedStore(self.urls[database], name, clock=self._here.clock, **properties)
        self._link(store._database)
        self.stores.append(store)
        return store

    def made(self) -> None:
        """All tables are made: what is in them from now on is a schedule's."""
        for url, link in self._links.items():
            tables = [name for (name,) in link.raw.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            empty = "SELECT NOT EXISTS (SELECT 1 FROM {})"
            self._filled[url] = [name for name in tables if link.raw.execute(empty.format(name)).fetchone()[0]]

    def start_over(self, **properties: Any) -> None:
        self.away.clear()
        for url, link in self._links.items():
            for table in self._filled[url]:
                link.raw.execute(f"DELETE FROM {table}")  # noqa: S608 - its own tables
        for store in self.stores:
            store.start_over(**properties)

    def close(self) -> None:
        for link in self._links.values():
            link.close()

    def install(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(Database, "read", self._turn_before)
        patch.setattr(Database, "write", self._turn_before)

    def select(self, store: SqlStore, *columns: str) -> list[Any]:
        """Looks into a store's table, which is no step of anybody's."""
        statement = f"SELECT {', '.join(columns)} FROM {store._table.name}"  # noqa: S608 - its own table
        return list(self._link(store._database).raw.execute(statement).fetchall())

    def open_steps(self, ledger: SqlLedger, run_id: str) -> list[str]:
        """The run's steps that have not come to their end, or could not say so."""
        statement = f"SELECT step FROM {ledger._steps.name} WHERE run_id = ?"  # noqa: S608 - its own table
        found = self._link(ledger._database).raw.execute(statement, (run_id,)).fetchall()
        return [step for (step,) in found if not step.startswith(PART)]

    @property
    def _turn_before(self) -> Callable[[Database, Work], Any]:
        def transact(database: Database, work: Work) -> Any:
            decision = self._here.pause(f"{database._name}: {_name(work)}")
            if decision == AWAY or database._name in self.away:
                raise StoreUnavailableError(f"store {database._name!r} is away")
            if decision == NO_MEMORY:
                raise MemoryError
            with database.translated("use"):
                result = self._link(database).transact(work)
            if decision == ANSWER_LOST:
                raise StoreUnavailableError(f"store {database._name!r} went away, and nobody knows what it did")
            return result

        return transact

    def _link(self, database: Database) -> Link:
        link = self._of.get(database)
        if link is None:
            url = str(database._engine.url)
            link = self._links.get(url) or self._links.setdefault(url, Link(database._engine.connect()))
            self._of[database] = link
        database._tables.complete(database._reader)
        return link


class Link:
    """The one connection to a database. Transactions are begun and ended by hand, which takes a third of the time."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.raw: Any = connection.connection.dbapi_connection
        self.raw.execute("PRAGMA synchronous=OFF")

    def transact(self, work: Work) -> Any:
        connection = self._connection
        if not connection.in_transaction():
            # SQLAlchemy's, which is never ended: it would take as long to begin as a statement.
            connection.begin()
            self.raw.execute("COMMIT")
        self.raw.execute("BEGIN IMMEDIATE")
        try:
            result = work(connection)
        except BaseException:
            self._end("ROLLBACK")
            raise
        self._end("COMMIT")
        return result

    def _end(self, how: str) -> None:
        if self.raw.in_transaction:  # unless `work` has ended it
            self.raw.execute(how)

    def close(self) -> None:
        self._connection.close()


def _name(work: Any) -> str:
    return str(getattr(work, "__qualname__", work)).partition(".<locals>")[0]
