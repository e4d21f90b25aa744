"""Replays that people ask for in Airflow: written down as operations, and held to the rule of their pipeline."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from airflow.sdk.exceptions import AirflowFailException

from homing.airflow.pipeline_config import PipelineConfig, batch_id
from homing.delivery import open_pipeline_stores
from homing.delivery.operations import CLEAR, REPLAY, RETRY, ApprovalRule, Operator, declare, named
from homing.errors import HomingError
from homing.operation_log import APPROVED, ASKED, BEGUN, DONE, FAILED, REJECTED, OperationEvent
from homing.pipeline_store import PipelineStore

_VIA = "airflow"
#: Stands for the user who cleared a task: Airflow does not tell the task, and keeps it in its audit log.
_CLEARED = "(Airflow's audit log has who)"
_UNKNOWN = "(not known)"


def is_by_hand(context: Any) -> bool:
    """Whether a person triggered this run, and not the pipeline itself."""
    run_type = getattr(context["dag_run"], "run_type", None)
    return getattr(run_type, "value", run_type) == "manual"


def asker_of(context: Any) -> str | None:
    """Who triggered the run, where that is known."""
    return getattr(context["dag_run"], "triggering_user_name", None) or None


def approval_rule(pipeline: PipelineConfig) -> ApprovalRule | None:
    above = pipeline.approve_replays_above
    return None if above is None else ApprovalRule(above, pipeline.approval_window, pipeline.replay_dag_id)


def declare_rule(store: PipelineStore, pipeline: PipelineConfig, log: Any) -> None:
    """Lets the command line know of the pipeline's rule. What cannot be written down holds up no delivery."""
    try:
        declare(store, approval_rule(pipeline), by=Operator(f"DAG {pipeline.replay_dag_id}", _VIA))
    except HomingError as error:
        log.warning("the rule for replays was not recorded, so the command line does not know it: %s", error)


def begin(store: PipelineStore, pipeline: PipelineConfig, context: Any, ids: Sequence[str]) -> bool:
    """Writes down that this run replays these messages, if a person asked for it; whether it may, unapproved.

    What the pipeline asks for itself does not count together. Where a rule holds it is written down all the same: when
    a person clears such a run, messages other than those count as selected by hand.
    """
    rule = approval_rule(pipeline)
    event, kept = _event(context, ids, BEGUN), store.operations()
    if rule is None:
        if is_by_hand(context):
            kept.append(event)
        return True
    if is_by_hand(context) or _clears(context):
        return kept.append_within(event, rule.above, rule.window, otherwise=ASKED)
    if len(ids) > rule.above:
        kept.append(replace(event, event=ASKED, what=RETRY))
        return False
    kept.append(replace(event, what=RETRY))
    return True


def may_replay(store: PipelineStore, pipeline: PipelineConfig, context: Any, ids: Sequence[str]) -> bool:
    """Whether this run may replay these very messages, unasked or approved: an XCom may have been changed since."""
    if pipeline.approve_replays_above is None:
        return begin(store, pipeline, context, ids)
    return any(event.event in (BEGUN, APPROVED) for event in store.operations().of(_id(context, ids)))


def answer(store: PipelineStore, context: Any, ids: Sequence[str], *, approved: bool, by: str) -> None:
    """Writes down who approved or rejected the replay of these messages."""
    event = _event(context, ids, APPROVED if approved else REJECTED, who=by)
    store.operations().append(event)


def why_not(store: PipelineStore, context: Any, ids: Sequence[str], responder: dict[str, Any] | None) -> str | None:
    """Why this user's approval does not count; None when it does. What the pipeline asked for itself can be approved by
    all who may answer."""
    if not is_by_hand(context):
        if not _clears(context) or any(event.what == RETRY for event in store.operations().of(_id(context, ids))):
            return None
        # It may be the user who approves it now.
        return (
            "the run was cleared and selected other messages than before, and it is not known who cleared it: trigger "
            f"{context['dag'].dag_id} with these messages instead"
        )
    asker, names = asker_of(context), {str(name) for name in (responder or {}).values() if name}
    if asker is None or not names:
        return "it is not known who asked for this replay, or who approved it"
    if asker in names:
        return f"{asker} asked for this replay, and cannot approve it: another user must"
    return None


def finish(store: PipelineStore, context: Any, ids: Sequence[str], *, done: bool, outcome: dict[str, Any]) -> None:
    """Writes down what came of a replay that was asked for by hand."""
    if is_by_hand(context):
        store.operations().append(_event(context, ids, DONE if done else FAILED, outcome=outcome))


def note_clear(pipeline: PipelineConfig, context: Any) -> None:
    """Records that a task of this run was cleared, once for each clear."""
    cleared = _clears(context)
    if not cleared:
        return
    operation = batch_id(context["dag"].dag_id, context["run_id"], f"cleared {cleared}")
    event = OperationEvent(operation, BEGUN, CLEAR, _CLEARED, _VIA, selection={"batch": pipeline.run_key(context)})
    with open_pipeline_stores(*pipeline.urls()) as stores:
        stores.store.operations().append(event)


def require_allowed(store: PipelineStore, pipeline: PipelineConfig, context: Any, failed: int) -> None:
    """Writes down that a run which was cleared takes up again so many messages that failed in it.

    Raises AirflowFailException where the rule for replays has no room for them: only the DAG of the replays asks.
    """
    rule, cleared = approval_rule(pipeline), _clears(context)
    if rule is None or not cleared or not failed:
        return
    key = pipeline.run_key(context)
    operation = batch_id(context["dag"].dag_id, context["run_id"], f"cleared {cleared}, replayed")
    event = OperationEvent(operation, BEGUN, REPLAY, _CLEARED, _VIA, messages=failed, selection={"batch": key})
    if not store.operations().append_within(event, rule.above, rule.window):
        raise AirflowFailException(f"{failed} messages failed in batch {key}, and {rule.refusal}")


def _clears(context: Any) -> int:
    """How often tasks of this run were cleared."""
    return int(getattr(context["dag_run"], "clear_number", 0) or 0)


def _id(context: Any, ids: Sequence[str]) -> str:
    """The operation of this run on these very messages."""
    digest = hashlib.sha256(json.dumps(sorted(ids)).encode()).hexdigest()[:16]
    return batch_id(context["dag"].dag_id, context["run_id"], digest)


def _event(
    context: Any, ids: Sequence[str], event: str, *, who: str | None = None, outcome: dict[str, Any] | None = None
) -> OperationEvent:
    pipeline = _CLEARED if _clears(context) else "(the pipeline)"
    why = context["params"].get("reason") or getattr(context["dag_run"], "note", None)
    asked = {name: value for name, value in context["params"].items() if value and name not in ("ids", "reason")}
    return OperationEvent(
        _id(context, ids),
        event,
        REPLAY,
        who or ((asker_of(context) or _UNKNOWN) if is_by_hand(context) else pipeline),
        _VIA,
        why=None if why is None else str(why),
        messages=len(ids),
        selection={**asked, **named(ids)},
        outcome=outcome,
    )
