"""DeliveryTaskGroup: a pipeline inside an author's own DAG."""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, TaskGroup

from homing.airflow.dags.delivery_dag import START, add_first_pass, callbacks_in, make_replay_dag
from homing.airflow.dags.neighbours import refuse_second
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
        ours, group_arguments = split_options(PipelineConfig, options, TaskGroup, f"DeliveryTaskGroup({group_id!r})")
        super().__init__(group_id=group_id, **group_arguments)
        # With the groups around it, in which there may be others of its name.
        group = self.group_id or group_id
        pipeline = PipelineConfig(f"{self.dag.dag_id}_{group}", **{**ours, "group": group})
        refuse_second(pipeline.replay_dag_id)
        default_args = {**self.dag.default_args, **self.default_args}
        with self:
            add_first_pass(pipeline, self.dag, default_args)
        common = {"catchup": False, "start_date": START, "tags": ["homing"], **_callbacks(self.dag, default_args)}
        self.replay_dag = make_replay_dag(pipeline, common)


def _callbacks(dag: DAG, default_args: dict[str, Any]) -> dict[str, Any]:
    """What the author's DAG, or the group, calls when something fails, for the replay's DAG too."""
    return {
        "default_args": {"on_failure_callback": callbacks_in(default_args)},
        "on_failure_callback": dag.on_failure_callback,
    }
