"""`airflow dags test`, and `dag.test()`: one process runs all tasks of a DAG, one after the other."""

from __future__ import annotations

from airflow.sdk.exceptions import AirflowSkipException
from airflow.sdk.execution_time import task_runner

# What a task talks to there, in place of a supervisor in another process.
_IN_PROCESS = "InProcessSupervisorComms"


def end_trial_run(store: str) -> None:
    """Skips the task of a test run that would wait for a message: no other process may be there to store one."""
    if type(getattr(task_runner, "SUPERVISOR_COMMS", None)).__name__ == _IN_PROCESS:
        raise AirflowSkipException(
            f"nothing is due in store {store}, and a test run does not wait: store a message, and test the DAG again"
        )
