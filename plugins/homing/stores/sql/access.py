"""Access: makes the tables of a store ahead of their use, and says which database user may do what with them."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy import Table

from homing.errors import ConfigurationError, NotPermittedError, TableMissingError, UnsupportedError
from homing.pipeline_store import CONSUMER, StoreAccess
from homing.stores.sql.archive import Archive
from homing.stores.sql.database import Database
from homing.stores.sql.ledger import SqlLedger
from homing.stores.sql.operations import SqlOperations
from homing.stores.sql.properties import ARCHIVED, LiveProperties
from homing.stores.sql.roles import StoreTables, grants, rights
from homing.stores.sql.schema import registry_table


class SqlAccess(StoreAccess):
    """The tables of one store, and the rights to them."""

    def __init__(
        self, database: Database, messages: Table, name: str, live: LiveProperties, archive: Archive | None
    ) -> None:
        self._database = database
        self._messages = messages
        self._name = name
        self._live = live
        self._archive = archive
        #: Whether with the pipeline's tables and with the archive: what the user was found to have the rights to.
        self._permitted: set[tuple[bool, bool]] = set()

    def prepare(self, *, pipeline: bool = False) -> list[str]:
        """As in the contract. Without it, tables are made when they are first needed."""
        self._beside(pipeline)
        made = self._database.prepare()
        if self._archive is not None and self._has_archive():
            self._archive.require()
        return made + self._database.prepare()

    def plan(self, *, pipeline: bool = False) -> dict[str, list[str]]:
        self._beside(pipeline)
        if self._archive is not None and self._live.given.acknowledged == ARCHIVED:
            self._archive.require()
        return self._database.plan()

    def incomplete(self, *, pipeline: bool = False) -> list[str]:
        self._beside(pipeline)
        return self._database.incomplete()

    def grants(self, role: str, to: str, *, pipeline: bool = False) -> list[str]:
        if not self._database.dialect.tells_rights:
            raise UnsupportedError(
                f"store {self._name!r} is not on PostgreSQL, for which `homing grants` has statements"
            )
        operations, *ledger = self._beside(pipeline)
        # Printing makes no tables, and a grant on a table that is not there fails.
        if missing := self._database.incomplete():
            raise ConfigurationError(
                f"store {self._name!r} has no table {missing[0]} to grant on, or not all of it: run `homing init` first"
            )
        archive = self._archive.table if self._archive is not None and self._has_archive() else None
        forgets = self._live.current().duplicate_window > 0
        tables = StoreTables(self._messages, registry_table(), archive, ledger, operations, forgets=forgets)
        return grants(role, tables, to)

    def require_consumer(self, *, pipeline: bool = False) -> None:
        """As in the contract, of the ledger's tables as well where it is a pipeline's store.

        Asked before anything is claimed: what can be claimed and not be settled would seem to kill its consumers.
        """
        archives = self._live.current().acknowledged == ARCHIVED
        if (pipeline, archives) in self._permitted:
            return
        beside = self._beside(pipeline)[1:] if pipeline else []
        archive = self._archive if archives else None
        if archive is not None:
            archive.require()
        tables = StoreTables(self._messages, registry_table(), archive.table if archive else None, beside)
        if lacks := self._database.lacking(rights(CONSUMER, tables)):
            raise NotPermittedError(
                f"the database user lacks rights of a consumer of store {self._name!r}: {'; '.join(map(str, lacks))}. "
                "Nothing was claimed; `homing grants --role consumer` prints what to grant"
            )
        self._permitted.add((pipeline, archives))

    def siblings(self) -> list[str]:
        names, prefix = registry_table().c.name, self._messages.name.removesuffix(self._name)
        found = self._database.read(lambda connection: list(connection.execute(sa.select(names)).scalars()))
        return sorted(name.removeprefix(prefix) for name in found if "__" not in name)

    def refuse_unknown(self) -> None:
        """Raises TableMissingError if the store was never created. Creates nothing, as other calls would."""
        if self._database.has(self._messages):
            return
        prefix = self._messages.name.removesuffix(self._name)
        others = [name.removeprefix(prefix) for name in self._database.names() if "__" not in name]
        raise TableMissingError(
            f"store {self._name!r} does not exist in this database, which has {', '.join(others) or 'no store at all'}"
            ": correct the name or the URL, or make it with `homing init`"
        )

    def make_archive(self) -> None:
        """Has the archive made now, before anything is to be archived."""
        if self._archive is not None:
            self._archive.make()

    def _beside(self, pipeline: bool) -> list[Table]:
        """The tables beside the store, which are required from now on."""
        ledger = SqlLedger(self._database, self._name).tables if pipeline else ()
        return [SqlOperations(self._database, self._name).table, *ledger]

    def _has_archive(self) -> bool:
        """Whether this store archives, or did."""
        archives = self._live.current().acknowledged == ARCHIVED
        return archives or (self._archive is not None and self._database.read(self._archive.is_there))
