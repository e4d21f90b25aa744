"""DeliveryTaskGroup: a pipeline inside an author's own DAG."""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, TaskGroup

from homing.airflow.dags.delivery_dag import START, add_first_pass, make_replay_dag
from homing.airflow.dags.options import has_options_of, split_options
from homing.airflow.pipeline_config import PipelineConfig


class DeliveryTaskGroup(TaskGroup):
    """listen ─▶ process ─▶ deliver.* ─▶ settle as a task group; the author's DAG says when it runs.

    Its options are those of `delivery_dag`, the fields of PipelineConfig; all others are arguments of TaskGroup. What
    fails is replayed by a DAG of its own, `<dag id>_<group id>_replay`, which is made along with it: `replay_dag`.
    """

    replay_dag: DAG

    @has_options_of(PipelineConfig, but=["name", "group"])
    def __init__(self, group_id: str, **options: Any) -> None:
        ours, group_arguments = split_options(PipelineConfig, options)
        super().__init__(group_id=group_id, **group_arguments)
        # With the groups around it, in which there may be others of its name.
        group = self.group_id or group_id
        pipeline = PipelineConfig(f"{self.dag.dag_id}_{group}", **{**ours, "group": group})
        with self:
            add_first_pass(pipeline)
        common = {"catchup": False, "start_date": START, "tags": ["homing"]}
        self.replay_dag = make_replay_dag(pipeline, common)
