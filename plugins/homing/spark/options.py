"""The options of the data source `homing`. They are read and checked once, on the driver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from homing.constraints import AtLeastOne, read_text
from homing.errors import ConfigurationError, UnsupportedError
from homing.pipeline_store import PipelineStore, is_pipeline_store
from homing.store import Store
from homing.store_ref import StoreRef
from homing.stores import open_store


@dataclass(frozen=True)
class StoreAddress:
    """How to find a store. It is sent to the executors, so it holds no open store: each process opens its own."""

    # No part of the repr: a URL may hold a password.
    url: str = field(repr=False)
    store: str | None = None

    @classmethod
    def of(cls, options: Mapping[str, str]) -> StoreAddress:
        """Raises ConfigurationError where the options do not name a store that other processes can open."""
        if not options.get("url"):
            raise ConfigurationError('the data source "homing" needs the option "url"')
        # Resolved here, on the driver: executors elsewhere do not have its environment.
        url = StoreRef(options["url"]).resolve()
        if url.startswith("memory:"):
            raise ConfigurationError("memory:// lives in one process, and Spark's workers are others: use sqlite:///")
        return cls(url, options.get("store"))

    def open(self) -> Store:
        """The store, not yet connected; the caller closes it."""
        opened = open_store(self.url)
        if self.store is None:
            return opened
        if not is_pipeline_store(opened):
            raise ConfigurationError(
                f'the option "store" names another store of a database, which {opened.name!r} is not in'
            )
        return opened.sibling(self.store)

    def open_sql(self, ability: str) -> PipelineStore:
        """Returns the store, not yet connected, if it is a SQL store; else raises UnsupportedError."""
        opened = self.open()
        if not is_pipeline_store(opened):
            raise UnsupportedError(
                f"store {opened.name!r} {ability}: only SQL stores can. Let a listener or a DAG take it in first"
            )
        return opened


def number(options: Mapping[str, str], name: str, default: int | None) -> int | None:
    """An integer >= 1. Raises ConfigurationError."""
    return read_text(f'the option "{name}"', options.get(name, default), AtLeastOne | None)
