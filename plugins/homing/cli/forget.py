"""forget: erases messages, and tells where copies may remain."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Collection, Sequence

from homing.cli.command import EXIT_FAILED, EXIT_OK
from homing.cli.context import CommandContext
from homing.delivery import PipelineStores, erasure, work_files
from homing.delivery.erasure import Traces
from homing.delivery.operations import FORGET, operation
from homing.delivery.private_folder import state_folder
from homing.ledger import digest
from homing.message import MessageRef
from homing.spark.submit import hadoop_shell

_OUT_OF_REACH = (
    "the broker or program it came from: a message that is sent again is stored again",
    "the operations table, where a replay by id names the message: nothing there is ever changed",
    "database backups, replicas and logs",
    "Airflow logs and XComs and Spark event logs, where ids or the output of handlers may mention it",
)


def forget_messages(arguments: Namespace, context: CommandContext) -> int:
    """Erases every message that is named. Returns 1 if an id is unknown; the others are erased all the same."""
    with context.pipeline(arguments) as stores:
        meant = {text: erasure.find(stores, text) for text in dict.fromkeys(arguments.ids)}
        refs = list(dict.fromkeys(ref for refs in meant.values() for ref in refs))
        traces = [erasure.look(stores, ref) for ref in refs]
        unknown = [text for text, found in meant.items() if not found and not _tell_when(stores, text, context)]
        for text, found in meant.items():
            if len(found) > 1:
                context.tell(f"{text} means {len(found)} messages: {', '.join(ref.name for ref in found)}")
        places = arguments.work_dir or _default_work_dirs()
        removed = _seen(traces)

        def erase_folders(runs: Collection[str]) -> list[str]:
            return [folder for place in places for folder in work_files.erase(place, runs, hadoop_shell)]

        if refs and not arguments.dry_run:
            # Without their ids, which may identify a person.
            begun = operation(stores.store, FORGET, by=context.operator, why=arguments.reason, messages=len(refs))
            with begun as outcome:
                erased = erasure.forget(stores, refs, arguments.reason, erase_folders=erase_folders)
                removed = {**erased.rows, "ledger": erased.ledger, "folders of runs": len(erased.folders)}
                outcome.update(removed)
            _tell_rest(traces, [*erased.remarks, _other_folders(places), *_OUT_OF_REACH], context)
    for text in unknown:
        context.tell(f"homing: message {text} is unknown in store {stores.store.name!r}")
    did = "would_remove" if arguments.dry_run else "removed"
    context.show([{"place": place, did: number} for place, number in removed.items()], arguments)
    return EXIT_FAILED if unknown else EXIT_OK


def _seen(traces: Sequence[Traces]) -> dict[str, int]:
    places = dict.fromkeys((place for each in traces for place in each.rows), 0)
    for each in traces:
        places |= {place: places[place] + number for place, number in each.rows.items()}
    return {**places, "ledger": sum(each.ledger for each in traces)}


def _tell_when(stores: PipelineStores, name: str, context: CommandContext) -> bool:
    """Whether the message of this name was forgotten before; if so, tells when."""
    ref = MessageRef.of_name(name)
    known = {} if ref is None else {each.digest: each for each in stores.ledger.tombstones.all()}
    found = None if ref is None else known.get(digest(ref))
    if found is not None:
        context.tell(f"message {name} was forgotten at {found.done:%Y-%m-%d %H:%M:%S} UTC: {found.reason}")
    return found is not None


def _tell_rest(traces: Sequence[Traces], rest: Sequence[str], context: CommandContext) -> None:
    destinations = sorted({name for each in traces for name in each.delivered_to})
    told = [f"the destinations it was delivered to: {', '.join(destinations)}"] if destinations else []
    context.tell("\n".join(["out of reach, copies may remain in:", *(f"- {line}" for line in (*told, *rest))]))


def _other_folders(places: Sequence[str]) -> str:
    """Airflow may run as another user or write elsewhere: where nothing was found, something may be all the same."""
    looked = f"looked into {', '.join(places)}" if places else "no work directory was looked into"
    return f"the pipeline's work_dir, if it is another one ({looked}): name it by --work-dir"


def _default_work_dirs() -> list[str]:
    return [str(place) for place in (state_folder() / "work").glob("*/")]
