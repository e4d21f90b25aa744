"""init and grants: creates the tables of a pipeline, and prints who may use them."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from homing.cli.command import EXIT_OK
from homing.cli.context import VARIABLES, CommandContext
from homing.delivery.operations import INIT, operation
from homing.errors import ConfigurationError
from homing.pipeline_store import PRODUCER, PipelineStore, is_pipeline_store


class _Part(NamedTuple):
    """A store of a pipeline, or a single store."""

    store: PipelineStore
    pipeline: bool = False


def init_stores(arguments: Namespace, context: CommandContext) -> int:
    """Creates every table of the stores and adds what it lacks. Running it again changes nothing."""
    with _parts(arguments, context) as parts:
        if arguments.dry_run:
            plans: dict[tuple[str, str], list[str]] = {}
            for store, pipeline in parts:
                for table, statements in store.access.plan(pipeline=pipeline).items():
                    plans.setdefault((store.place[0], table), statements)
            _write(plans, parts, context)
            return EXIT_OK
        made = [
            {"store": part.store.name, "table": name} for part in parts for name in _prepare(part, arguments, context)
        ]
    context.tell(f"{len(made)} tables were created or completed")
    context.show(made, arguments)
    return EXIT_OK


def print_grants(arguments: Namespace, context: CommandContext) -> int:
    """Prints the statements that give a database role the rights of one of our roles."""
    with _parts(arguments, context) as parts:
        # Producers only store messages: they need no rights on failure and dead-letter stores.
        concerned = parts[:1] if arguments.role == PRODUCER else parts
        statements = {
            (store.place[0], line): [line]
            for store, pipeline in concerned
            for line in store.access.grants(arguments.role, arguments.to, pipeline=pipeline)
        }
        _write(statements, parts, context)
    return EXIT_OK


def _write(statements: Mapping[tuple[str, str], list[str]], parts: list[_Part], context: CommandContext) -> None:
    """Prints statements. The key is the place of the database plus a text that removes repetitions."""
    here = parts[0].store.place[0]
    context.write_sql(line for (place, _), lines in statements.items() for line in lines if place == here)
    if elsewhere := [line for (place, _), lines in statements.items() for line in lines if place != here]:
        context.write_sql(["-- in the database of the dead-letter store", *elsewhere])


def _prepare(part: _Part, arguments: Namespace, context: CommandContext) -> list[str]:
    access = part.store.access
    incomplete = access.incomplete(pipeline=part.pipeline)
    if not incomplete:
        return []
    with operation(part.store, INIT, by=context.operator, why=arguments.reason) as outcome:
        made = access.prepare(pipeline=part.pipeline)
        outcome["tables"] = sorted({*incomplete, *made})
    return list(outcome["tables"])


@contextmanager
def _parts(arguments: Namespace, context: CommandContext) -> Iterator[list[_Part]]:
    """The stores of the pipeline, or only the store if no dead-letter store is named."""
    if _names_dead_letters(arguments, context):
        with context.pipeline(arguments, new=True) as stores:
            yield [_Part(stores.store, pipeline=True), _Part(stores.failures), _Part(stores.dead_letters)]
        return
    context.tell("no dead-letter store given: this covers the store alone, not a pipeline")
    with context.open(arguments.store) as store:
        if not is_pipeline_store(store):
            raise ConfigurationError(f"store {store.name!r} is not in a database, and has no tables")
        yield [_Part(store)]


def _names_dead_letters(arguments: Namespace, context: CommandContext) -> bool:
    try:
        context.find_url(arguments.dead_letter_store)
    except ConfigurationError:
        if arguments.dead_letter_store not in VARIABLES:
            raise
        return False
    return True
