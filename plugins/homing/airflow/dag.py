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
from homing.airflow.hook import is_url
from homing.airflow.operators import (
    DeliverOperator,
    ProcessOperator,
    ReplayOperator,
    SettleOperator,
    SettleReplayOperator,
)
from homing.airflow.pipeline import PipelineSpec
from homing.airflow.sensor import StoreSensor
from homing.delivery import open_pipeline_stores
from homing.delivery.batch import DEFAULT_LEASE
from homing.errors import ConfigurationError
from homing.pipeline import load_chain
from homing.retry import RetryPolicy
from homing.stores import check_scheme

# "@continuous" runs once and never again without a start date.
_START = datetime(2025, 1, 1, tzinfo=timezone.utc)
# Arguments of DAG that make a pipeline what it is.
_OURS = {"dag_id", "schedule", "max_active_runs", "params"}
# A settlement that fails waits for a database or an API server to come back, not for a message to be mended.
_SETTLE = {"retries": 5, "retry_delay": timedelta(seconds=10), "retry_exponential_backoff": 2.0}


def delivery_dag(
    name: str,
    *,
    chain: str,
    store: str,
    dead_letter_store: str,
    polling_interval: float = 1.0,
    max_retries: int = 3,
    retry_interval: float = 1.0,
    retry: RetryPolicy | None = None,
    batch_size: int = 1000,
    lease: float = DEFAULT_LEASE,
    spark_conn_id: str = "spark_default",
    work_dir: str | None = None,
    spark_conf: dict[str, str] | None = None,
    **dag_arguments: Any,
) -> tuple[DAG, DAG]:
    """Makes the DAGs `<name>` and `<name>_replay` and returns them.

    `chain` is "module:attribute"; stores are URLs, `env:NAME` or ids of Airflow connections. A message that failed is
    replayed 1 + `max_retries` times, `retry_interval` seconds apart, then dead-lettered; `retry` is a whole policy in
    place of those two. `dag_arguments` go to both DAGs. Opens no store and no Spark session; raises ChainImportError
    when the chain cannot be imported, UnknownStoreError for a URL that no store answers to, and ConfigurationError for
    a policy Airflow cannot keep.
    """
    _check(name, store, dead_letter_store, dag_arguments)
    policy = _policy(name, retry, max_retries, retry_interval)
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
            **dag_arguments.get("default_args", {}),
            **policy.task_arguments(),
        },
    }
    spark = {"conn_id": spark_conn_id, "conf": dict(spark_conf or {})}
    return _first_pass(name, pipeline, common, spark), _replay(name, pipeline, common, spark)


def _policy(name: str, retry: RetryPolicy | None, max_retries: int, retry_interval: float) -> RetryPolicy:
    given = RetryPolicy(max_retries=max_retries, interval=retry_interval)
    if retry is not None and given != RetryPolicy(3, 1.0):
        raise ConfigurationError(
            f"delivery_dag({name!r}) has either retry= or max_retries= and retry_interval=, not both"
        )
    return given if retry is None else retry


def _check(name: str, store: object, dead_letter_store: object, dag_arguments: dict[str, Any]) -> None:
    """Raises ConfigurationError for what would only go wrong once messages are at stake."""
    urls = [reference for reference in (store, dead_letter_store) if is_url(reference)]
    for url in urls:
        check_scheme(url)
    if len(urls) == 2 and not any(url.startswith("env:") for url in urls):  # noqa: PLR2004
        with open_pipeline_stores(*urls):
            pass  # opening connects to nothing, and finds fault with names and options
    taken = _OURS & dag_arguments.keys()
    if taken:
        raise ConfigurationError(f"delivery_dag({name!r}) sets {', '.join(sorted(taken))} itself")


def _first_pass(name: str, pipeline: PipelineSpec, common: dict[str, Any], spark: dict[str, Any]) -> DAG:
    # One run at a time, and the next one listens as soon as it has ended.
    with DAG(name, schedule="@continuous", max_active_runs=1, **common) as dag:
        listen = StoreSensor(task_id="listen", pipeline=pipeline).as_setup()
        process = ProcessOperator(task_id="process", pipeline=pipeline, **spark)
        with TaskGroup("deliver") as deliver:
            for flow in pipeline.flows:
                DeliverOperator(task_id=flow, pipeline=pipeline, flow=flow, **spark)
        settle = SettleOperator(
            task_id="settle", pipeline=pipeline, replay_dag_id=f"{name}_replay", **_SETTLE
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
        settle = SettleReplayOperator(task_id="settle", pipeline=pipeline, **_SETTLE).as_teardown()
        replay >> settle
    return dag
