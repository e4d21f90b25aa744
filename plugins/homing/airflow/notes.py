"""Task notes: once a run has ended, the scheduler writes what our tasks said of their batch into the tasks' notes.

A listener, because a task has no way to write a note of its own. It works in the scheduler's session, which commits the
notes along with the run's end. Imported by every Airflow process: keep it light.
"""

from __future__ import annotations

import json
from typing import Any

from airflow.listeners import hookimpl


@hookimpl
def on_dag_run_success(dag_run: Any) -> None:
    write_notes(dag_run)


@hookimpl
def on_dag_run_failed(dag_run: Any) -> None:
    write_notes(dag_run)


def write_notes(dag_run: Any) -> None:
    """Gives the tasks of this run the notes they left. What a person wrote stays."""
    from airflow.models.taskinstance import TaskInstance
    from airflow.models.xcom import XComModel
    from sqlalchemy import select
    from sqlalchemy.orm import object_session

    from homing.airflow.telling import NOTE

    session = object_session(dag_run)
    if session is None:
        return
    said = select(XComModel.task_id, XComModel.map_index, XComModel.value).where(
        XComModel.dag_run_id == dag_run.id, XComModel.key == NOTE
    )
    for task_id, map_index, value in session.execute(said).all():
        task = select(TaskInstance).where(
            TaskInstance.dag_id == dag_run.dag_id,
            TaskInstance.run_id == dag_run.run_id,
            TaskInstance.task_id == task_id,
            TaskInstance.map_index == map_index,
        )
        instance = session.scalar(task)
        if instance is not None and _is_free(instance):
            instance.note = read_value(value)


def read_value(value: Any) -> Any:
    """What a task pushed, from the column that it is kept in: as JSON, or as JSON in a string."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _is_free(instance: Any) -> bool:
    """Whether nobody has written a note yet, or only we have, before a clear."""
    written = instance.task_instance_note
    return written is None or written.user_id is None
