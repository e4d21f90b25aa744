"""delivery_dag: a pipeline as two DAGs.

orders           listen ─▶ process ─▶ deliver.crm ──┐
                                  └─▶ deliver.lake ─┴▶ settle        (failures? triggers orders_replay)
orders_replay    replay ─▶ settle
"""

from __future__ import annotations

import tempfile
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Param, TaskGroup

from homing.airflow.callbacks import dead_letter_callback
from homing.airflow.operators import (
    DeliverOperator,
    ProcessOperator,
    ReplayOperator,
    SettleOperator,
    SettleReplayOperator,
)
from homing.airflow.pipeline import PipelineSpec
from homing.airflow.sensor import StoreSensor
from homing.delivery.batch import DEFAULT_LEASE
from homing.pipeline import load_chain
from homing.retry import RetryPolicy
from homing.stores import check_scheme

# Settling must not be given up early: it is what acknowledges.
_SETTLE_RETRIES = 5
# "@continuous" runs once and never again without a start date.
_START = datetime(2025, 1, 1, tzinfo=timezone.utc)


def delivery_dag(
    name: str,
    *,
    chain: str,
    store: str,
    dead_letter_store: str,
    polling_interval: float = 1.0,
    max_retries: int = 3,
    retry_interval: float = 1.0,
    batch_size: int = 1000,
    lease: float = DEFAULT_LEASE,
    spark_conn_id: str = "spark_default",
    work_dir: str | None = None,
    spark_conf: dict[str, str] | None = None,
    **dag_arguments: Any,
) -> tuple[DAG, DAG]:
    """Makes the DAGs `<name>` and `<name>_replay` and returns them.

    `chain` is "module:attribute"; stores are URLs, `env:NAME` or ids of Airflow connections. A message that failed is
    replayed 1 + `max_retries` times, `retry_interval` seconds apart, then dead-lettered. `dag_arguments` go to both
    DAGs. Opens no store and no Spark session; raises ChainImportError when the chain cannot be imported, and
    UnknownStoreError for a URL that no store answers to.
    """
    for reference in (store, dead_letter_store):
        if "://" in reference:
            check_scheme(reference)
    policy = RetryPolicy(max_retries=max_retries, interval=retry_interval)
    pipeline = PipelineSpec(
        name=name,
        chain=chain,
        flows=[flow.name for flow in load_chain(chain).flows],
        store=store,
        dead_letter_store=dead_letter_store,
        work_dir=work_dir or str(Path(tempfile.gettempdir(), "homing", name)),
        batch_size=batch_size,
        polling_interval=polling_interval,
        lease=lease,
    )
    common = {
        "catchup": False,
        "start_date": _START,
        "tags": ["homing"],
        **dag_arguments,
        "default_args": {
            "retries": policy.max_retries,
            "retry_delay": timedelta(seconds=policy.interval),
            **dag_arguments.get("default_args", {}),
        },
    }
    spark = {"conn_id": spark_conn_id, "conf": dict(spark_conf or {})}
    return _first_pass(name, pipeline, common, spark), _replay(name, pipeline, common, spark)


def _first_pass(name: str, pipeline: PipelineSpec, common: dict[str, Any], spark: dict[str, Any]) -> DAG:
    # One run at a time, and the next one listens as soon as it has ended.
    with DAG(name, schedule="@continuous", max_active_runs=1, **common) as dag:
        listen = StoreSensor(task_id="listen", pipeline=pipeline).as_setup()
        process = ProcessOperator(task_id="process", pipeline=pipeline, **spark)
        with TaskGroup("deliver") as deliver:
            for flow in pipeline.flows:
                DeliverOperator(task_id=flow, pipeline=pipeline, flow=flow, **spark)
        settle = SettleOperator(
            task_id="settle", pipeline=pipeline, replay_dag_id=f"{name}_replay", retries=_SETTLE_RETRIES
        ).as_teardown(setups=listen)
        listen >> process >> deliver >> settle
    return dag


def _replay(name: str, pipeline: PipelineSpec, common: dict[str, Any], spark: dict[str, Any]) -> DAG:
    params = {
        "batch": Param(None, type=["null", "string"], description="Replay what failed in this batch"),
        "ids": Param([], type="array", items={"type": "string"}, description="Replay these messages"),
    }
    with DAG(f"{name}_replay", schedule=None, params=params, **common) as dag:
        replay = ReplayOperator(task_id="replay", pipeline=pipeline, on_failure_callback=dead_letter_callback, **spark)
        settle = SettleReplayOperator(task_id="settle", pipeline=pipeline, retries=_SETTLE_RETRIES).as_teardown()
        replay >> settle
    return dag
