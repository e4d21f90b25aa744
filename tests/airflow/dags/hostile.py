"""Tasks that pass for ours and do nothing, for the tests to forge the XComs of, and what would believe them: the
scheduler, where a task comes after an approval, and a replay."""

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG

from homing.airflow import PipelineConfig, ReplayOperator
from homing.airflow.operators.select import ApproveReplayOperator
from homing.airflow.serialized_dag import FIELD

TASKS = 18


class Ours(EmptyOperator):
    template_fields = (FIELD,)
    homing_pipeline = None


class Approved(ApproveReplayOperator):
    """As the scheduler sees it; it ends at once, without a question."""

    inherits_from_empty_operator = True


with DAG("hostile", schedule=None):
    pipeline = PipelineConfig(
        "hostile",
        chain="approved_chain:chain",
        store="env:APPROVED_STORE",
        dead_letter_store="env:APPROVED_DEAD_LETTERS",
    )
    forged = [Ours(task_id=f"forged_{number}") for number in range(TASKS)]
    for number in range(TASKS):
        approved = Approved(task_id=f"approved_{number}", pipeline=pipeline, ids=[])
        approved >> EmptyOperator(task_id=f"after_{number}")
    replay = ReplayOperator(task_id="replay", pipeline=pipeline, ids=forged[0].output, retries=0)
