"""The messages of a replay: selected once, frozen in an XCom, and approved by a person when they are many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import BaseOperator, Param
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

from homing.airflow import manual_replay, metrics
from homing.airflow.pipeline_config import PipelineConfig
from homing.airflow.serialized_dag import FIELD, describe_pipeline
from homing.airflow.task_notes import note
from homing.airflow.xcoms import PLAN, read_names
from homing.delivery import Batch, PipelineStores, Selection, open_pipeline_stores
from homing.delivery.failures import Failure, group, select
from homing.errors import ConfigurationError
from homing.printable import printable
from homing.times import parse_past

_SHOWN = 10
_ASK_AGAIN = 86_400.0  # seconds


def replay_params() -> dict[str, Param]:
    """The form of a replay that is triggered by hand. Empty fields do not narrow the selection."""
    text = ["null", "string"]
    when = "2026-12-01 02:00 Europe/Berlin, or PT1H for an hour ago"
    return {
        "batch": Param(None, type=text, title="Batch", description="What failed in this batch"),
        "ids": Param([], type="array", items={"type": "string"}, title="Ids", description="These messages"),
        "error_group": Param(
            None, type=text, title="Error group", description='As `homing failures` calls it, such as "crm: URLError"'
        ),
        "destination": Param(None, type=text, title="Destination", description="What failed at this destination"),
        "since": Param(None, type=text, title="Failed since", description=when),
        "until": Param(None, type=text, title="Failed before", description=when),
        "limit": Param(
            None, type=["null", "integer"], minimum=1, title="Limit", description="The oldest so many at most"
        ),
        "rate": Param(
            None,
            type=["null", "number"],
            exclusiveMinimum=0,
            title="Rate",
            description="Messages per second to each destination at most; runs in the task, unless handlers take "
            "DataFrames",
        ),
        "reason": Param(None, type=text, title="Reason", description="The reason; recorded with the operation"),
        "dry_run": Param(False, type="boolean", title="Dry run", description="Say what would happen, deliver nothing"),
    }


class SelectOperator(BaseOperator):
    """Selects what the run's params say, and returns the messages' names: the replay acts on these, whatever fails
    meanwhile.

    A dry run says, per error group, what a replay would do, and skips it.
    """

    template_fields = (FIELD,)

    def __init__(self, *, pipeline: PipelineConfig, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.pipeline = pipeline
        self.homing_pipeline = describe_pipeline(pipeline)

    def execute(self, context: Any) -> list[str]:
        params = context["params"]
        selection = read_selection(params, getattr(context["dag_run"], "run_after", None))
        with open_pipeline_stores(*self.pipeline.urls()) as stores:
            manual_replay.declare_rule(stores.store, self.pipeline, self.log)
            found = select(stores, selection)
            unknown = [] if found else self._unknown(stores, selection)
        if unknown:
            raise AirflowFailException(
                f"nothing is known in store {stores.store.name!r} of {printable(', '.join(unknown[:_SHOWN]))}"
            )
        plan = say_plan(found)
        for line in plan or ["nothing has failed, or what failed was delivered since"]:
            self.log.info(line)
        context["ti"].xcom_push(key=PLAN, value=plan)
        if params.get("dry_run"):
            raise self._skipped(context, f"a dry run: {len(found)} messages would be replayed")
        if not found:
            raise self._skipped(context, "nothing is left to replay")
        note(self, context, f"Selected {len(found)} messages to replay.")
        return [failure.ref.name for failure in found]

    def _skipped(self, context: Any, why: str) -> AirflowSkipException:
        note(self, context, f"{why[0].upper()}{why[1:]}.")
        return AirflowSkipException(why)

    def _unknown(self, stores: PipelineStores, selection: Selection) -> list[str]:
        return Batch(stores, "", self.pipeline.flows).unknown(selection.ids, selection.batch)


class ApproveReplayOperator(ApprovalOperator):
    """Asks a person before more messages are replayed than the pipeline allows without approval. Replays by hand count
    together for `approval_window` seconds, and who asked for one cannot approve it.

    No other run replays them while the question is open. It is asked again after a day, in another run, for this one
    may be gone. What is refused becomes dead letters: only people replay those.
    """

    template_fields = (*ApprovalOperator.template_fields, "ids", FIELD)
    # Else the scheduler would believe an XCom that says which tasks to skip, and stumble over one that says nonsense.
    inherits_from_skipmixin = False

    def __init__(self, *, pipeline: PipelineConfig, ids: Any, **kwargs: Any) -> None:
        super().__init__(subject="Replay?", **kwargs)
        self.pipeline = pipeline
        self.homing_pipeline = describe_pipeline(pipeline)
        self.ids = ids

    def execute(self, context: Any) -> Any:
        names = read_names(self.ids)
        with open_pipeline_stores(*self.pipeline.urls()) as stores:
            if manual_replay.begin(stores.store, self.pipeline, context, names):
                self.log.info("%d messages need no approval", len(names))
                return None
            # From the stores: who approves is told what is there, and not what an XCom says of it.
            plan = say_plan(select(stores, Selection(ids=names)))
            Batch(stores, self.pipeline.run_key(context), self.pipeline.flows).put_off(names, _ASK_AGAIN)
        self.subject = f"Replay {len(names)} messages of {self.dag.dag_id.removesuffix('_replay')}?"
        self.body = "\n".join(f"- {line}" for line in plan)
        return super().execute(context)

    def execute_complete(self, context: Any, event: dict[str, Any]) -> Any:
        chosen, responder = event.get("chosen_options"), event.get("responded_by_user")
        approved = chosen == [self.APPROVE]
        if approved and (fault := self._why_not(context, responder)):
            note(self, context, f"The approval does not count: {fault}.")
            raise AirflowException(f"the approval does not count: {fault}")  # tried again, it asks again
        if approved or chosen == [self.REJECT]:
            self._write_down(context, responder, approved=approved)
        if chosen == [self.REJECT]:
            with self.pipeline.open_batch(self.pipeline.run_key(context)) as batch:
                refused = batch.reject(read_names(self.ids))
            metrics.count_settlement(refused, self.pipeline.name)
            note(self, context, f"The replay was refused: {refused}.")
        return super().execute_complete(context, event)

    def _why_not(self, context: Any, responder: Any) -> str | None:
        with open_pipeline_stores(*self.pipeline.urls()) as stores:
            return manual_replay.why_not(stores.store, context, read_names(self.ids), responder)

    def _write_down(self, context: Any, responder: Any, *, approved: bool) -> None:
        by = str((responder or {}).get("name") or "(not known)")
        with open_pipeline_stores(*self.pipeline.urls()) as stores:
            manual_replay.answer(stores.store, context, read_names(self.ids), approved=approved, by=by)


def say_plan(failures: Sequence[Failure]) -> list[str]:
    """What a replay of these would do, a line for each error group."""
    return [f"{each.name}: {each.failures} messages, {each.plan}" for each in group(failures)]


def read_selection(params: Any, asked_at: datetime | None = None) -> Selection:
    """The params in the words of the delivery protocol, as they were meant when the run was asked for: clearing it
    selects the same again. Raises ConfigurationError where they select nothing at all."""
    selection = Selection(
        batch=params.get("batch") or None,
        ids=params.get("ids") or (),
        error_group=params.get("error_group") or None,
        since=parse_past(params["since"], now=asked_at) if params.get("since") else None,
        until=parse_past(params["until"], now=asked_at) if params.get("until") else None,
        destination=params.get("destination") or None,
        limit=params.get("limit"),
    )
    if replace(selection, limit=None).everything:
        raise ConfigurationError(
            "nothing selected to replay: give a batch, ids, an error group, a destination or a time range"
        )
    named = selection.batch or selection.ids or selection.until
    return selection if named else replace(selection, until=asked_at)
