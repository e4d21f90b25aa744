"""The tasks of a pipeline and how they hang together; the DAG factory and the task group are made of them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, TaskGroup

from homing.airflow.callbacks import dead_letter_callback
from homing.airflow.operators import DeliverOperator, ProcessOperator, ReplayOperator
from homing.airflow.pipeline import PipelineSpec
from homing.airflow.selecting import ApproveReplayOperator, SelectOperator, replay_params
from homing.airflow.sensor import StoreSensor
from homing.airflow.settling import SettleOperator, SettleReplayOperator

# A question that fails was not refused: Airflow lost it, or took an answer given at once for a task that died.
_ASK: dict[str, Any] = {"retries": 3, "retry_delay": timedelta(seconds=5)}
# A claim or a settlement that fails waits for a database or an API server, not for a message to be mended.
_BOOKKEEPING: dict[str, Any] = {"retries": 5, "retry_delay": timedelta(seconds=10), "retry_exponential_backoff": 2.0}


def add_first_pass(pipeline: PipelineSpec, spark: dict[str, Any], replay_dag_id: str) -> None:
    """listen ─▶ process ─▶ deliver.* ─▶ settle, in the DAG or task group that is open."""
    arguments = pipeline.task_arguments()
    listen = StoreSensor(task_id="listen", pipeline=pipeline, **_BOOKKEEPING).as_setup()
    process = ProcessOperator(task_id="process", pipeline=pipeline, **spark, **arguments)
    with TaskGroup("deliver") as deliver:
        for flow in pipeline.flows:
            DeliverOperator(task_id=flow, pipeline=pipeline, flow=flow, **spark, **arguments)
    settle = SettleOperator(task_id="settle", pipeline=pipeline, replay_dag_id=replay_dag_id, **_BOOKKEEPING)
    listen >> process >> deliver >> settle.as_teardown(setups=listen)


def make_replay_dag(
    dag_id: str,
    pipeline: PipelineSpec,
    spark: dict[str, Any],
    dag_arguments: dict[str, Any],
) -> DAG:
    """select ─▶ (approve ─▶) replay ─▶ settle, in a DAG of its own."""
    # Failures would wait for a paused replay, and nobody pauses or unpauses it but by hand.
    dag_arguments = {"is_paused_upon_creation": False, **dag_arguments}
    with DAG(dag_id, schedule=None, params=replay_params(), **dag_arguments) as dag:
        # Said outright, because a task group of another DAG may be open.
        here: dict[str, Any] = {"dag": dag, "task_group": dag.task_group}
        arguments = {**pipeline.task_arguments(), **here}
        select = SelectOperator(task_id="select", pipeline=pipeline, **arguments)
        replay = ReplayOperator(
            task_id="replay",
            pipeline=pipeline,
            ids=select.output,
            rate="{{ params.rate }}",
            on_failure_callback=dead_letter_callback,
            **spark,
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
