"""delivery_dag: a pipeline as two DAGs.

orders           listen ─▶ process ─▶ deliver.crm ──┐
                                  └─▶ deliver.lake ─┴▶ settle        (failures? triggers orders_replay)
orders_replay    select ─▶ (approve ─▶) replay ─▶ settle
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

from airflow.sdk import DAG, TaskGroup

from homing.airflow.callbacks import dead_letter_callback
from homing.airflow.operators.select import ApproveReplayOperator, SelectOperator, replay_params
from homing.airflow.operators.settle import SettleOperator, SettleReplayOperator
from homing.airflow.operators.spark import DeliverOperator, ProcessOperator, ReplayOperator
from homing.airflow.pipeline import APPROVAL_WINDOW, SPARK_ABOVE, PipelineSpec
from homing.airflow.sensors.store import StoreSensor
from homing.delivery.settlement import DEFAULT_LEASE
from homing.errors import ConfigurationError
from homing.retry import RetryPolicy

# "@continuous" runs once and never again without a start date.
START = datetime(2025, 1, 1, tzinfo=timezone.utc)
# Arguments of DAG that make a pipeline what it is.
_OURS = {"dag_id", "schedule", "max_active_runs", "params"}
# A question that fails was not refused: Airflow lost it, or took an answer given at once for a task that died.
_ASK: dict[str, Any] = {"retries": 3, "retry_delay": timedelta(seconds=5)}
# A claim or a settlement that fails waits for a database or an API server, not for a message to be mended.
_BOOKKEEPING: dict[str, Any] = {"retries": 5, "retry_delay": timedelta(seconds=10), "retry_exponential_backoff": 2.0}


def delivery_dag(
    name: str,
    *,
    chain: str,
    store: str,
    dead_letter_store: str,
    source: str | None = None,
    polling_interval: float = 1.0,
    max_retries: int = 3,
    retry_interval: float = 1.0,
    retry: RetryPolicy | None = None,
    batch_size: int = 1000,
    lease: float = DEFAULT_LEASE,
    approve_replays_above: int | None = None,
    approval_window: float = APPROVAL_WINDOW,
    spark_conn_id: str = "spark_default",
    work_dir: str | None = None,
    spark_above: int = SPARK_ABOVE,
    spark_conf: dict[str, str] | None = None,
    **dag_arguments: Any,
) -> tuple[DAG, DAG]:
    """Makes the DAGs `<name>` and `<name>_replay` and returns them.

    `chain` is "module:attribute"; stores are URLs, `env:NAME` or ids of Airflow connections. What `source` holds, a
    RabbitMQ or Service Bus queue, is taken into the store by `listen`. A message that failed is replayed
    1 + `max_retries` times, `retry_interval` seconds apart, then dead-lettered; `retry` is a whole policy in place of
    those two. Another person must approve a replay of more than `approve_replays_above` messages; what was replayed by
    hand in the last `approval_window` seconds counts. With a local master, up to
    `spark_above` messages are worked on by one plain process, which is done before Spark would have started; 0 for
    always Spark. `dag_arguments` go to both DAGs.

    Opens no store and no Spark session. Raises ChainImportError when the chain cannot be imported, UnknownStoreError
    for a URL that no store answers to, and ConfigurationError for a policy Airflow cannot keep.
    """
    taken = _OURS & dag_arguments.keys()
    if taken:
        raise ConfigurationError(f"delivery_dag({name!r}) sets {', '.join(sorted(taken))} itself")
    pipeline = PipelineSpec.of(
        name,
        chain=chain,
        store=store,
        dead_letter_store=dead_letter_store,
        source=source,
        polling_interval=polling_interval,
        max_retries=max_retries,
        retry_interval=retry_interval,
        retry=retry,
        batch_size=batch_size,
        lease=lease,
        work_dir=work_dir,
        spark_above=spark_above,
        approve_replays_above=approve_replays_above,
        approval_window=approval_window,
    )
    common = {"catchup": False, "start_date": START, "tags": ["homing"], **dag_arguments}
    spark = {"conn_id": spark_conn_id, "conf": dict(spark_conf or {})}
    # One run at a time, and the next one listens as soon as it has ended.
    with DAG(name, schedule="@continuous", max_active_runs=1, **common) as first_pass:
        add_first_pass(pipeline, spark, pipeline.replay_dag_id)
    return first_pass, make_replay_dag(pipeline.replay_dag_id, pipeline, spark, common)


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
    # Failures would wait for a paused replay, and only a person pauses or unpauses it.
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
