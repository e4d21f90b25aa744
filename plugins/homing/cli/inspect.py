"""stores, peek, list, show, operations: commands that change nothing."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from typing import Any

from homing.cli.command import EXIT_FAILED, EXIT_OK
from homing.cli.context import CommandContext
from homing.delivery import PipelineStores
from homing.delivery.leased_part import resolve
from homing.delivery.operations import Operation, read_operations
from homing.errors import ConfigurationError, NotPermittedError
from homing.failure import dead_letter_id
from homing.message import AVAILABLE, Message
from homing.pipeline_store import is_pipeline_store
from homing.store import COUNT, Store
from homing.times import parse_past


def count_stores(arguments: Namespace, context: CommandContext) -> int:
    """Counts each named store and, in a database, every other store there. Returns 1 if a named store cannot be
    counted."""
    rows: dict[tuple[str, ...], dict[str, Any]] = {}
    counted = True
    for reference in arguments.stores or _set(context):
        with context.known_store(reference) as store:
            counted = counted and COUNT in store.features
            for place, row in _counted(store, context):
                rows.setdefault(place, row)
    context.show(list(rows.values()), arguments)
    return EXIT_OK if counted or not arguments.stores else EXIT_FAILED


def peek_messages(arguments: Namespace, context: CommandContext) -> int:
    """Shows the next messages with their contents. Returns 1 if no message is due."""
    with context.known_store(arguments.store) as store:
        found = store.browse(arguments.limit, state=AVAILABLE)
    context.show([_whole(message) for message in found], arguments)
    return EXIT_OK if found else EXIT_FAILED


def list_messages(arguments: Namespace, context: CommandContext) -> int:
    """Lists messages, one per line."""
    with context.known_store(arguments.store) as store:
        found = store.browse(arguments.limit, state=arguments.state, after=arguments.after)
    context.show([_line(message) for message in found], arguments)
    return EXIT_OK


def show_message(arguments: Namespace, context: CommandContext) -> int:
    """Shows one message, wherever it is. Returns 1 if it is unknown."""
    with context.pipeline(arguments) as pipeline:
        where = _whereabouts(pipeline, arguments.id)
        ledger = pipeline.ledger.entries([arguments.id]).get(arguments.id, {})
    if not where and not ledger:
        context.tell(f"homing: message {arguments.id} is unknown in store {pipeline.store.name!r}")
        return EXIT_FAILED
    deliveries = [
        {
            "flow": entry.flow or "(source flow)",
            "destination": entry.destination,
            "state": entry.state,
            "attempts": entry.attempts,
            "deliveries": entry.deliveries,
            "error": entry.error and {key: entry.error.get(key) for key in ("type", "message", "handler")},
            "result": entry.result,
            "batch": entry.batch_id,
            "run": entry.run_id,
        }
        for entry in ledger.values()
    ]
    context.show({"id": arguments.id, "found_in": where, "deliveries": deliveries}, arguments)
    return EXIT_OK


def list_operations(arguments: Namespace, context: CommandContext) -> int:
    """Lists who changed what, when and why, oldest first."""
    since = parse_past(arguments.since) if arguments.since else None
    with context.known_store(arguments.store) as store:
        if not is_pipeline_store(store):
            raise ConfigurationError(f"store {store.name!r} is not in a database, and keeps no record of operations")
        found = read_operations(store, since, limit=arguments.limit)
    context.show([_operation(each) for each in found], arguments)
    return EXIT_OK


def _operation(each: Operation) -> dict[str, Any]:
    return {
        "began": each.began,
        "who": each.who,
        "via": each.via,
        "what": each.what,
        "messages": each.messages,
        "why": each.why,
        "state": each.state,
        "ended": each.ended,
        "selection": each.selection,
        "outcome": each.outcome,
        "operation": each.id,
    }


def _set(context: CommandContext) -> list[str]:
    """The default stores whose variable is set; raises if there is none."""
    found = []
    for reference in context.known():
        try:
            context.find_url(reference)
        except ConfigurationError:
            continue
        found.append(reference)
    if not found:
        raise ConfigurationError("no store given: name one, or set HOMING_STORE to its URL")
    return found


def _counted(store: Store, context: CommandContext) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    if not is_pipeline_store(store):
        counts = store.count() if COUNT in store.features else {}
        if COUNT not in store.features:
            context.tell(f"homing: store {store.name!r} cannot be counted: its kind of store has no count")
        yield (type(store).__name__, store.name), {"store": store.name, "kind": type(store).__name__, **counts}
        return
    for name in sorted({store.name, *store.access.siblings()}):
        with store.sibling(name) as each:
            try:
                age, counts = each.oldest_age(), each.count()
            except NotPermittedError:
                if name == store.name:
                    raise
                context.tell(f"homing: store {name!r} is in the same database, but you have no permission to count it")
                continue
            about = {"store": name, "kind": each.place[0].partition(":")[0], **counts}
            yield each.place, {**about, "oldest": None if age is None else round(age, 1)}


def _whereabouts(pipeline: PipelineStores, message_id: str) -> list[dict[str, Any]]:
    names = {ref.name for refs in resolve(pipeline, [message_id]).values() for ref in refs}
    places = (
        (pipeline.store, [message_id]),
        (pipeline.failures, list(names)),
        (pipeline.dead_letters, [dead_letter_id(pipeline.store.name, name) for name in names]),
    )
    return [
        {"store": store.name, **_whole(message)}
        for store, known_as in places
        for message in store.browse(len(known_as), ids=known_as)
    ]


def _line(message: Message) -> dict[str, Any]:
    return {
        "number": message.sequence_number,
        "id": message.id,
        "state": message.state,
        "deliveries": message.delivery_count,
        "enqueued": message.enqueued_at,
        "due": message.scheduled_at,
        "reason": message.dead_letter_reason,
    }


def _whole(message: Message) -> dict[str, Any]:
    return {**_line(message), "headers": dict(message.headers), "content": message.content}
