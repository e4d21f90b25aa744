"""Desk: what a command works with. Where stores are found, and how an answer is shown."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from homing.cli.output import render
from homing.delivery import PipelineStores, open_pipeline_stores
from homing.delivery.operations import Operator, operator_here
from homing.printable import printable
from homing.store import Store
from homing.stores import open_store, resolve_url
from homing.stores.sql import SqlStore

VARIABLES = ("env:HOMING_STORE", "env:HOMING_DEAD_LETTER_STORE")


class Desk:
    """`find_url` turns the name of a store into its URL; `known` names the stores to look at when none is named; `via`
    is what people call these commands by."""

    def __init__(
        self,
        find_url: Callable[[str], str] = resolve_url,
        known: Callable[[], Sequence[str]] = lambda: VARIABLES,
        via: str = "homing",
    ) -> None:
        self.find_url = find_url
        self.known = known
        self.via = via

    @property
    def operator(self) -> Operator:
        """Who gave the command."""
        return operator_here(self.via)

    def open(self, reference: str) -> Store:
        """The store, not yet connected; the caller closes it."""
        return open_store(self.find_url(reference))

    @contextmanager
    def known_store(self, reference: str) -> Iterator[Store]:
        """The store, which must be there: whoever looks for something in a store that a typo names would find nothing,
        and be told that all is well."""
        with self.open(reference) as store:
            if isinstance(store, SqlStore):
                store.refuse_unknown()
            yield store

    @contextmanager
    def pipeline(self, arguments: Namespace, *, new: bool = False) -> Iterator[PipelineStores]:
        """The stores of the pipeline whose store and dead-letter store were named. The store must be there, unless it
        may be `new`; a dead-letter store is made when it is first needed."""
        urls = self.find_url(arguments.store), self.find_url(arguments.dead_letter_store)
        with open_pipeline_stores(*urls) as stores:
            if not new:
                stores.store.refuse_unknown()
            yield stores

    def show(self, answer: Sequence[Mapping[str, Any]] | Mapping[str, Any], arguments: Namespace) -> None:
        """Shows rows, or one object, in the form that was asked for."""
        sys.stdout.write(render(answer, arguments.output) + "\n")

    def write_sql(self, statements: Iterable[str]) -> None:
        """Shows statements as a database's own client reads them."""
        for text in statements:
            sys.stdout.write(f"{text}\n" if text.startswith("--") else f"{text};\n")

    def tell(self, text: str) -> None:
        """Says something to people; scripts that read the answer do not see it."""
        sys.stderr.write(printable(text, keep="\n") + "\n")
