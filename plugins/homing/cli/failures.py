"""failures, replay, dead-letter: lists failures, and replays or dead-letters them."""

from __future__ import annotations

from argparse import Namespace

from homing.cli.command import EXIT_FAILED, EXIT_OK
from homing.cli.context import CommandContext
from homing.constraints import Positive, check
from homing.delivery import Batch, Failure, PipelineStores, Selection
from homing.delivery.dead_letter import dead_letter_messages
from homing.delivery.failures import group, select
from homing.delivery.leased_part import resolve
from homing.delivery.local_replay import replay_in_process
from homing.delivery.operations import DEAD_LETTER, REPLAY, described, named, operation, rule_of
from homing.errors import ConfigurationError
from homing.ids import new_id
from homing.pipeline import load_chain
from homing.times import parse_past


def list_failures(arguments: Namespace, context: CommandContext) -> int:
    """Lists the error groups, or with --messages the messages. Returns 0 even if there are none."""
    with context.pipeline(arguments) as stores:
        found = select(stores, _selection(arguments))
    if arguments.messages:
        context.show([_line(failure) for failure in found], arguments)
    else:
        context.show(_groups(found), arguments)
    return EXIT_OK


def replay_failures(arguments: Namespace, context: CommandContext) -> int:
    """Replays the selected messages. Returns 1 if a message still fails (it stays where it was), or if no failed
    message matches the selection."""
    selection, chain = _selection(arguments), load_chain(arguments.chain)
    if selection.everything and not arguments.all:
        raise ConfigurationError("nothing selected to replay: give ids, --batch, --error-group, --since, ... or --all")
    check("--rate in messages per second", arguments.rate, Positive | None)
    with context.pipeline(arguments) as stores:
        found = select(stores, selection)
        astray = _tell_astray(selection, found, stores.store.name, context)
        if arguments.dry_run:
            context.tell(f"would replay {len(found)} messages")
            context.show(_groups(found), arguments)
            return EXIT_FAILED if astray else EXIT_OK
        chain.refuse_dataframes()  # before any message is leased
        batch = Batch(stores, f"homing replay/{new_id()}", [flow.name for flow in chain.flows], chain=chain.name)
        about = operation(
            stores.store,
            REPLAY,
            by=context.operator,
            why=arguments.reason,
            messages=len(found),
            selection=described(selection),
            within=rule_of(stores.store),
        )
        with context.connected(chain), about as answer:
            held = batch.reclaim([failure.ref for failure in found])
            with chain:
                tally = replay_in_process(stores, batch, chain, rate=arguments.rate)
            settlement = batch.settle()
            answer |= {"replayed": held, "delivered": settlement.acknowledged, "still_failing": settlement.released}
    busy = len(found) - held
    if busy:
        context.tell(f"{busy} of them are being replayed by another process")
    context.show({**answer, "outcomes": dict(tally)}, arguments)
    return EXIT_FAILED if settlement.released or busy or astray else EXIT_OK


def _tell_astray(selection: Selection, found: list[Failure], store: str, context: CommandContext) -> bool:
    """Tells what the selection did not find; whether it found nothing at all, or missed one of the ids."""
    if not found and not selection.ids:
        context.tell(f"homing: no failed message in store {store!r} matches; `homing failures` lists all failures")
        return not selection.everything
    names = {name for failure in found for name in (failure.message_id, failure.ref.name)}
    # With a limit, ids that are missing may have failed too and just exceed the limit.
    left = [one for one in selection.ids if one not in names] if selection.limit is None or not found else []
    for one in left:
        context.tell(f"homing: message {one} has not failed in store {store!r}, or does not match the other options")
    return bool(left)


def dead_letter_failures(arguments: Namespace, context: CommandContext) -> int:
    """Dead-letters waiting or failed messages. Returns 1 if some are finished, unknown or leased."""
    with context.pipeline(arguments) as stores:
        known = resolve(stores, arguments.ids)
        failed = stores.failures.view.present([ref.name for refs in known.values() for ref in refs])
        waiting = stores.store.view.present(arguments.ids) | {
            one for one, refs in known.items() if any(ref.name in failed for ref in refs)
        }
        moved = waiting if arguments.dry_run else _give_up(arguments, context, stores)
    left = [message_id for message_id in arguments.ids if message_id not in moved]
    for message_id in left:
        context.tell(f"homing: message {message_id} is not waiting in store {stores.store.name!r}, or is leased")
    context.tell(f"{'would dead-letter' if arguments.dry_run else 'dead-lettered'} {len(moved)}")
    context.show([{"id": message_id} for message_id in sorted(moved)], arguments)
    return EXIT_FAILED if left else EXIT_OK


def _give_up(arguments: Namespace, context: CommandContext, stores: PipelineStores) -> set[str]:
    ids, why = arguments.ids, arguments.reason
    with operation(
        stores.store, DEAD_LETTER, by=context.operator, why=why, messages=len(ids), selection=named(ids)
    ) as outcome:
        moved = dead_letter_messages(stores, ids, why)
        outcome["dead_lettered"] = len(moved)
    return moved


def _selection(arguments: Namespace) -> Selection:
    return Selection(
        batch=arguments.batch,
        ids=arguments.ids,
        error_group=arguments.error_group,
        since=parse_past(arguments.since) if arguments.since else None,
        until=parse_past(arguments.until) if arguments.until else None,
        destination=arguments.destination,
        limit=arguments.limit,
    )


def _groups(found: list[Failure]) -> list[dict[str, object]]:
    return [
        {
            "group": each.name,
            "messages": each.failures,
            "dead": each.dead,
            "oldest": each.oldest,
            "newest": each.newest,
            "example": each.example,
            "error": each.example_error,
            "a_replay": each.plan,
        }
        for each in group(found)
    ]


def _line(failure: Failure) -> dict[str, object]:
    return {
        "id": failure.message_id,
        "state": "dead" if failure.dead else "waiting for its replay",
        "failed": failure.failed_at,
        "groups": failure.groups,
        "done": sorted(failure.done),
        "batch": failure.batch_id,
    }
