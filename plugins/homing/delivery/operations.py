"""Operations: for every change a person makes to a pipeline, a record beside its store says who, when, what and why.

    with operation(stores.store, DEAD_LETTER, by=operator_here("homing"), why="sent by mistake", messages=3) as done:
        ...
        done["dead_lettered"] = 3

The beginning of an operation is durable before anything is changed. Its end is a second row. If the process dies in
between, only the first row is there, and the operation counts as unfinished. What it had done by then is in the ledger.
"""

from __future__ import annotations

import logging
import os
import pwd
import socket
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from homing.delivery.failures import Selection
from homing.errors import ConfigurationError, HomingError
from homing.ids import new_id
from homing.operation_log import BEGUN, DONE, FAILED, OperationEvent
from homing.pipeline_store import PipelineStore, is_pipeline_store
from homing.store import Store

log = logging.getLogger(__name__)

#: What can be done.
REPLAY, DEAD_LETTER, PURGE, FORGET, INIT = "replay", "dead-letter", "purge", "forget", "init"
#: A task of a run was cleared, which runs its batch again; a pipeline said how many messages are replayed unasked.
CLEAR, RULE, RETRY = "clear", "rule", "retry"

#: The state of one that has begun, and of whose end nothing is known.
UNFINISHED = "unfinished"

_NAMED = 50  # ids that are written down
_EVENTS = 4  # of one operation at most


@dataclass(frozen=True)
class Operator:
    """The user who changes something, if it is certain who that is, and the means: `homing`, Airflow and so on."""

    name: str
    via: str


@dataclass(frozen=True)
class ApprovalRule:
    """The rule that another person must approve when more than `above` messages are replayed by hand.

    All that was replayed by hand within `window` seconds counts together. The DAG `replay_dag` asks for the approval.
    """

    above: int
    window: float
    replay_dag: str

    @property
    def refusal(self) -> str:
        return (
            f"more than {self.above} messages replayed by hand within {self.window:g} s need an approval, and what was "
            f"replayed lately counts: trigger the DAG {self.replay_dag}, which asks for it. Nothing was replayed"
        )


@dataclass
class Operation:
    """One operation, put together from its events."""

    id: str
    what: str
    who: str
    via: str
    began: datetime | None
    why: str | None = None
    messages: int | None = None
    selection: Any = None
    state: str = UNFINISHED
    ended: datetime | None = None
    outcome: Any = None
    events: list[OperationEvent] = field(default_factory=list)


def operator_here(via: str) -> Operator:
    """Returns the operating system's user of this process. Not what environment variables say: anyone can set them."""
    user = os.getuid()
    try:
        name = pwd.getpwuid(user).pw_name
    except KeyError:
        name = f"uid {user}"
    return Operator(f"{name}@{socket.gethostname()}", via)


@contextmanager
def operation(
    store: Store,
    what: str,
    *,
    by: Operator,
    why: str | None = None,
    messages: int | None = None,
    selection: Any = None,
    operation_id: str | None = None,
    within: ApprovalRule | None = None,
) -> Iterator[dict[str, Any]]:
    """Records before the block that this operation begins, and after the block how it ended.

    The block gets a dict, into which it puts the outcome: numbers and names, never contents.

    `operation_id` is for what may be begun again, by a retried task for example: it is written down once. A store that
    is in no database keeps no record. Raises StoreError, before the block, when the beginning cannot be written, and
    ConfigurationError when there is a rule by which the operation needs an approval.
    """
    outcome: dict[str, Any] = {}
    if not is_pipeline_store(store):
        yield outcome
        return
    kept = store.operations()
    begun = OperationEvent(operation_id or new_id(), BEGUN, what, by.name, by.via, why, messages, selection)
    if within is None:
        kept.append(begun)
    elif not kept.append_within(begun, within.above, within.window):
        raise ConfigurationError(within.refusal)
    try:
        yield outcome
    except BaseException as error:
        end(store, begun, FAILED, {**outcome, "error": type(error).__name__})
        raise
    end(store, begun, DONE, outcome)


def end(store: PipelineStore, begun: OperationEvent, event: str, outcome: dict[str, Any]) -> None:
    """Writes down how an operation ended. The change is made by then: a database that is away does not undo it."""
    ended = OperationEvent(begun.operation, event, begun.what, begun.who, begun.via, outcome=outcome)
    try:
        store.operations().append(ended)
    except HomingError as error:
        log.warning("the end of operation %s (%s) was not written down: %s", begun.operation, event, error)


def declare(store: PipelineStore, rule: ApprovalRule | None, *, by: Operator) -> None:
    """Makes the rule known to all who open the store; None says that there is none any more."""
    if rule != rule_of(store):
        said = {} if rule is None else asdict(rule)
        store.operations().append(OperationEvent(new_id(), DONE, RULE, by.name, by.via, outcome=said))


def rule_of(store: PipelineStore) -> ApprovalRule | None:
    """The rule that the pipeline of this store declared last."""
    said = store.operations().latest(RULE)
    if said is None or not said.outcome:
        return None
    return ApprovalRule(int(said.outcome["above"]), float(said.outcome["window"]), str(said.outcome["replay_dag"]))


def described(selection: Selection) -> dict[str, Any]:
    """What a selection is by, to be written down."""
    by = {
        "batch": selection.batch,
        "error_group": selection.error_group,
        "destination": selection.destination,
        "since": selection.since and selection.since.isoformat(),
        "until": selection.until and selection.until.isoformat(),
        "limit": selection.limit,
        **named(selection.ids),
    }
    return {name: value for name, value in by.items() if value}


def named(ids: Collection[str]) -> dict[str, Any]:
    """These ids, to be written down: the first of them, and how many there are."""
    some = list(ids)
    return {"ids": some[:_NAMED], **({"ids_in_all": len(some)} if len(some) > _NAMED else {})}


def read_operations(
    store: PipelineStore, since: datetime | None = None, *, limit: int | None = None
) -> list[Operation]:
    """The operations that something was heard of since then, the oldest first, the last `limit` of them."""
    events = store.operations().since(since, limit=None if limit is None else limit * _EVENTS)
    found = _told(events)
    return found if limit is None else found[-limit:]


def _told(events: Iterable[OperationEvent]) -> list[Operation]:
    operations: dict[str, Operation] = {}
    for event in events:
        one = operations.setdefault(
            event.operation,
            Operation(event.operation, event.what, event.who, event.via, event.at),
        )
        one.events.append(event)
        if event.event in (DONE, FAILED):
            one.state, one.ended, one.outcome = event.event, event.at, event.outcome
        else:
            one.why, one.messages, one.selection = event.why, event.messages, event.selection
    return list(operations.values())
