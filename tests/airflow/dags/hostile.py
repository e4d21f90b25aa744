"""Tasks that pass for ours and do nothing, for the tests to forge the XComs of, and one of ours that believes them."""

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG

from homing.airflow import PipelineConfig, ReplayOperator
from homing.airflow.serialized_dag import FIELD

TASKS = 16


class Ours(EmptyOperator):
    template_fields = (FIELD,)
    homing_pipeline = None


with DAG("hostile", schedule=None):
    forged = [Ours(task_id=f"forged_{number}") for number in range(TASKS)]
    pipeline = PipelineConfig(
        "hostile",
        chain="approved_chain:chain",
        store="env:APPROVED_STORE",
        dead_letter_store="env:APPROVED_DEAD_LETTERS",
    )
    replay = ReplayOperator(task_id="replay", pipeline=pipeline, ids=forged[0].output, retries=0)
