"""purge and audit: removes finished messages, and checks that no message is missing."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import asdict
from typing import Any

from homing.cli.command import EXIT_FAILED, EXIT_OK
from homing.cli.context import CommandContext
from homing.delivery import AuditReport, run_audit
from homing.delivery.audit import Totals
from homing.delivery.operations import PURGE, operation
from homing.delivery.retention import count_trimmable, trim_ledger
from homing.errors import ConfigurationError
from homing.failure import FAILURE_STORE
from homing.message import ACKNOWLEDGED, DEAD
from homing.pipeline import load_chain
from homing.pipeline_store import is_pipeline_store
from homing.store import Store
from homing.times import parse_duration


def purge_store(arguments: Namespace, context: CommandContext) -> int:
    """Removes finished messages and shows how many."""
    older_than = None if arguments.older_than is None else parse_duration(arguments.older_than)
    with context.known_store(arguments.store) as store:
        if arguments.state == DEAD:
            _refuse_last_copies(store)
        retention = _retention(store) if arguments.state == ACKNOWLEDGED else 0.0
        if arguments.dry_run:
            outcome: dict[str, Any] = {"would_remove": store.purgeable(older_than, state=arguments.state)}
            outcome.update(_trim_ledger(arguments, context, retention))
        else:
            which = {"state": arguments.state, "older_than": older_than}
            with operation(store, PURGE, by=context.operator, why=arguments.reason, selection=which) as outcome:
                outcome["removed"] = store.purge(older_than, state=arguments.state)
                outcome.update(_trim_ledger(arguments, context, retention))
        answer = {"store": store.name, **outcome}
    context.show(answer, arguments)
    return EXIT_OK


def _retention(store: Store) -> float:
    """For how long the ledger beside this store is kept; 0 for as long as the messages, or where there is none."""
    if is_pipeline_store(store) and f"{store.name}{FAILURE_STORE}" in store.access.siblings():
        return store.properties.ledger_retention
    return 0.0


def _trim_ledger(arguments: Namespace, context: CommandContext, retention: float) -> dict[str, int]:
    """How many messages' ledger entries were removed, or would be."""
    if not retention:
        return {}
    try:
        context.find_url(arguments.dead_letter_store)
    except ConfigurationError as error:
        context.tell(f"homing: the ledger is not trimmed, because a dead letter may need it: {error}")
        return {}
    with context.pipeline(arguments) as stores:
        if arguments.dry_run:
            return {"ledger_would_remove": count_trimmable(stores, retention)}
        return {"ledger_removed": trim_ledger(stores, retention)}


def _refuse_last_copies(store: Store) -> None:
    """A dead message in a pipeline's own stores is the only copy: it still has to move to the dead-letter store."""
    if (
        is_pipeline_store(store)
        and f"{store.name.removesuffix(FAILURE_STORE)}{FAILURE_STORE}" in store.access.siblings()
    ):
        raise ConfigurationError(
            f"cannot purge dead messages of store {store.name!r} of a pipeline, they have no other copy yet: the "
            "pipeline, or homing_reconcile, moves them to the dead-letter store"
        )


def audit_pipeline(arguments: Namespace, context: CommandContext) -> int:
    """Counts every accepted message and where it went. Returns 1, with their ids, if some are unaccounted for."""
    flows = _flows(arguments)
    with context.pipeline(arguments) as stores:
        books = run_audit(stores, flows)
    context.show(_sheet(books, stores.store.name), arguments)
    for message_id in books.unaccounted:
        context.tell(f"homing: message {message_id} is unaccounted for")
    return EXIT_OK if books.balanced else EXIT_FAILED


def _flows(arguments: Namespace) -> list[str]:
    if arguments.destinations:
        return [name.strip() for name in arguments.destinations.split(",")]
    if arguments.chain:
        return [flow.name for flow in load_chain(arguments.chain).flows]
    raise ConfigurationError("destinations unknown: give --chain module:attribute, or --destinations crm,lake")


def _sheet(books: AuditReport, store: str) -> dict[str, object]:
    batches = {name or "(not claimed yet)": column for name, column in books.batches.items()}
    sums = [
        _sum("store", store, books.total),
        *(_sum("destination", name, column) for name, column in books.destinations.items()),
        *(_sum("batch", name, column) for name, column in batches.items()),
    ]
    return {"balanced": books.balanced, "since": books.since, "unaccounted": books.unaccounted, "sums": sums}


def _sum(of: str, name: str, column: Totals) -> dict[str, object]:
    return {"of": of, "name": name, **asdict(column), "balanced": column.balanced}
