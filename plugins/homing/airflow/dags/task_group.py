"""DeliveryTaskGroup: a pipeline inside an author's own DAG."""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, TaskGroup

from homing.airflow.dags.delivery_dag import START, add_first_pass, make_replay_dag
from homing.airflow.pipeline import APPROVAL_WINDOW, SPARK_ABOVE, PipelineSpec
from homing.delivery.settlement import DEFAULT_LEASE
from homing.retry import RetryPolicy


class DeliveryTaskGroup(TaskGroup):
    """listen ─▶ process ─▶ deliver.* ─▶ settle as a task group; the author's DAG says when it runs.

    Its arguments mean what they mean for `delivery_dag`; `group_arguments` go to TaskGroup. What fails is replayed by a
    DAG of its own, `<dag id>_<group id>_replay`, which is made along with it: `replay_dag`.
    """

    replay_dag: DAG

    def __init__(
        self,
        group_id: str,
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
        **group_arguments: Any,
    ) -> None:
        super().__init__(group_id=group_id, **group_arguments)
        # With the groups around it, in which there may be others of its name.
        group = self.group_id or group_id
        name = f"{self.dag.dag_id}_{group}"
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
            group=group,
        )
        spark = {"conn_id": spark_conn_id, "conf": dict(spark_conf or {})}
        with self:
            add_first_pass(pipeline, spark, pipeline.replay_dag_id)
        common = {"catchup": False, "start_date": START, "tags": ["homing"]}
        self.replay_dag = make_replay_dag(pipeline.replay_dag_id, pipeline, spark, common)
