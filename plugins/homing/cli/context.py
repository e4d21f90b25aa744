"""CommandContext: what every command uses to find stores and to show its answer."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from homing.cli.output import render
from homing.declared_connections import connections, texts_in_environment
from homing.delivery import PipelineStores, open_pipeline_stores
from homing.delivery.operations import Operator, operator_here
from homing.pipeline import HandlerChain
from homing.printable import printable
from homing.store import Store
from homing.store_ref import StoreRef
from homing.stores import open_store

VARIABLES = ("env:HOMING_STORE", "env:HOMING_DEAD_LETTER_STORE")


class CommandContext:
    """`find_url` turns the name of a store into its URL; `known` names the stores to use when none is given; `via` is
    the program name that people type; `find_connections` tells what
    connections say that handlers declare."""

    def __init__(
        self,
        find_url: Callable[[str], str] = lambda reference: StoreRef(reference).resolve(),
        known: Callable[[], Sequence[str]] = lambda: VARIABLES,
        via: str = "homing",
        find_connections: Callable[[Mapping[str, str]], Mapping[str, str]] = texts_in_environment,
    ) -> None:
        self.find_url = find_url
        self.known = known
        self.via = via
        self.find_connections = find_connections

    @property
    def operator(self) -> Operator:
        """Who ran the command."""
        return operator_here(self.via)

    def open(self, reference: str) -> Store:
        """The store, not yet connected; the caller closes it."""
        return open_store(self.find_url(reference))

    @contextmanager
    def known_store(self, reference: str) -> Iterator[Store]:
        """The store, which must exist: for a misspelled name, a command would find nothing, as if all was well."""
        with self.open(reference) as store:
            store.refuse_unknown()
            yield store

    @contextmanager
    def pipeline(self, arguments: Namespace, *, new: bool = False) -> Iterator[PipelineStores]:
        """The stores of the pipeline that the arguments name. The store must exist unless `new`; a dead-letter store is
        created when it is first needed."""
        urls = self.find_url(arguments.store), self.find_url(arguments.dead_letter_store)
        with open_pipeline_stores(*urls) as stores:
            if not new:
                stores.store.refuse_unknown()
            yield stores

    @contextmanager
    def connected(self, chain: HandlerChain) -> Iterator[None]:
        """While the block lasts, the chain's handlers find the connections that they declare."""
        with connections(self.find_connections(chain.connections())):
            yield

    def show(self, answer: Sequence[Mapping[str, Any]] | Mapping[str, Any], arguments: Namespace) -> None:
        """Prints rows, or one object, in the requested format."""
        sys.stdout.write(render(answer, arguments.output) + "\n")

    def write_sql(self, statements: Iterable[str]) -> None:
        """Prints statements in a form that the database's own client can read."""
        for text in statements:
            sys.stdout.write(f"{text}\n" if text.startswith("--") else f"{text};\n")

    def tell(self, text: str) -> None:
        """Writes a message for people to standard error, which scripts that read the answer do not see."""
        sys.stderr.write(printable(text, keep="\n") + "\n")
