"""delivery_dag: a pipeline as two DAGs.

orders           listen ─▶ process ─▶ deliver.crm ──┐
                                  └─▶ deliver.lake ─┴▶ settle        (failures? triggers orders_replay)
orders_replay    select ─▶ (approve ─▶) replay ─▶ settle
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from typing import Any

from airflow.sdk import DAG, TaskGroup

from homing.airflow.callbacks import dead_letter_callback
from homing.airflow.dags.neighbours import look_at_neighbours, refuse_second
from homing.airflow.dags.options import has_options_of, split_options
from homing.airflow.operators.select import ApproveReplayOperator, SelectOperator, replay_params
from homing.airflow.operators.settle import SettleOperator, SettleReplayOperator
from homing.airflow.operators.spark import DeliverOperator, ProcessOperator, ReplayOperator
from homing.airflow.pipeline_config import PipelineConfig
from homing.airflow.retry_policy import OUTAGE
from homing.airflow.sensors.store import StoreSensor
from homing.errors import ConfigurationError

# "@continuous" runs once and never again without a start date.
START = datetime(2025, 1, 1, tzinfo=timezone.utc)
# Arguments of DAG that make a pipeline what it is.
_OURS = {"dag_id", "schedule", "max_active_runs", "params", "group"}
# A question that fails was not refused: Airflow lost it, or took an answer given at once for a task that died.
_ASK: dict[str, Any] = {"retries": 3, "retry_delay": timedelta(seconds=5)}
# A claim or a settlement that fails waits for a database or an API server.
_BOOKKEEPING: dict[str, Any] = OUTAGE.task_arguments()


@has_options_of(PipelineConfig, but=["name", "group"])
def delivery_dag(name: str, **options: Any) -> tuple[DAG, DAG]:
    """Makes the DAGs `<name>` and `<name>_replay` and returns them.

    Its options are the fields of PipelineConfig, where each is explained; all others are arguments of DAG, for both
    DAGs. Opens no store and no Spark session. Raises ChainImportError when the chain cannot be imported,
    UnknownStoreError for a URL that no store answers to, and ConfigurationError for a policy Airflow cannot keep.
    """
    taken = _OURS & options.keys()
    if taken:
        raise ConfigurationError(f"delivery_dag({name!r}) sets {', '.join(sorted(taken))} itself")
    ours, dag_arguments = split_options(PipelineConfig, options, DAG, f"delivery_dag({name!r})")
    pipeline = PipelineConfig(name, **ours)
    for dag_id in (name, pipeline.replay_dag_id):
        refuse_second(dag_id)
    common = {"catchup": False, "start_date": START, "tags": ["homing"], **dag_arguments}
    # One run at a time, and the next one listens as soon as it has ended.
    with DAG(name, schedule="@continuous", max_active_runs=1, **common) as first_pass:
        add_first_pass(pipeline, first_pass, first_pass.default_args)
    return first_pass, make_replay_dag(pipeline, common)


def add_first_pass(pipeline: PipelineConfig, dag: DAG, default_args: Mapping[str, Any]) -> None:
    """listen ─▶ process ─▶ deliver.* ─▶ settle, in the task group of this DAG that is open.

    What `default_args` say of retries goes for the Spark jobs, which wait for an outage to end by default.
    """
    look_at_neighbours(pipeline, dag)
    arguments = {name: value for name, value in OUTAGE.task_arguments().items() if name not in default_args}
    listen = StoreSensor(task_id="listen", pipeline=pipeline, **_BOOKKEEPING).as_setup()
    process = ProcessOperator(task_id="process", pipeline=pipeline, **arguments)
    with TaskGroup("deliver") as deliver:
        for flow in pipeline.flows:
            DeliverOperator(task_id=flow, pipeline=pipeline, flow=flow, **arguments)
    settle = SettleOperator(task_id="settle", pipeline=pipeline, **_BOOKKEEPING)
    listen >> process >> deliver >> settle.as_teardown(setups=listen)


def callbacks_in(default_args: Mapping[str, Any]) -> list[Any]:
    """The failure callbacks that an author has every task call: none, one or a list of them."""
    said = default_args.get("on_failure_callback")
    return list(said) if isinstance(said, (list, tuple)) else [said] if said else []


def make_replay_dag(pipeline: PipelineConfig, dag_arguments: dict[str, Any]) -> DAG:
    """select ─▶ (approve ─▶) replay ─▶ settle, in a DAG of its own."""
    # Failures would wait for a paused replay, and only a person pauses or unpauses it.
    dag_arguments = {"is_paused_upon_creation": False, **dag_arguments}
    with DAG(pipeline.replay_dag_id, schedule=None, params=replay_params(), **dag_arguments) as dag:
        # Said outright, because a task group of another DAG may be open.
        here: dict[str, Any] = {"dag": dag, "task_group": dag.task_group}
        arguments = {**pipeline.task_arguments(), **here}
        select = SelectOperator(task_id="select", pipeline=pipeline, **_BOOKKEEPING, **here)
        replay = ReplayOperator(
            task_id="replay",
            pipeline=pipeline,
            ids=select.output,
            rate="{{ params.rate }}",
            # Ours first. Airflow calls each of them, also when another one raised.
            on_failure_callback=[dead_letter_callback, *callbacks_in(dag.default_args)],
            **arguments,
        )
        settle = SettleReplayOperator(task_id="settle", pipeline=pipeline, **_BOOKKEEPING, **here).as_teardown()
        if pipeline.approve_replays_above is not None:
            approve = ApproveReplayOperator(
                task_id="approve",
                pipeline=pipeline,
                ids=select.output,
                **_ASK,
                **here,
            )
            select >> approve >> replay
        select >> replay >> settle
    return dag
