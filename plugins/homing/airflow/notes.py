"""Task notes: once a run has ended, the scheduler writes what our tasks said of their batch into the tasks' notes.

A listener, because a task has no way to write a note of its own. It works in the scheduler's session, which commits the
notes along with the run's end; so nothing that somebody pushed as an XCom may do that session harm. Imported by every
Airflow process: keep it light.
"""

from __future__ import annotations

import json
import logging
from typing import Any

from airflow.listeners import hookimpl

from homing.airflow.serialized import is_ours

log = logging.getLogger(__name__)

#: The XCom that a task leaves its sentence in.
NOTE = "homing_note"

_LONGEST = 1000  # characters, what Airflow's column takes
_LONGEST_XCOM = 10 * _LONGEST  # a longer one is not even read


@hookimpl
def on_dag_run_success(dag_run: Any) -> None:
    write_notes(dag_run)


@hookimpl
def on_dag_run_failed(dag_run: Any) -> None:
    write_notes(dag_run)


def write_notes(dag_run: Any) -> None:
    """Gives our tasks of this run the notes they left. What a person wrote stays.

    Never raises: a note is not worth a scheduler.
    """
    from sqlalchemy.orm import object_session

    try:
        session = object_session(dag_run)
        if session is not None and (ours := _our_tasks(dag_run)):
            # What fails inside is undone alone, and leaves the session as it was.
            with session.begin_nested():
                _write(session, dag_run, ours)
    except Exception:
        log.warning("the notes of run %s of %s were not written", dag_run.run_id, dag_run.dag_id, exc_info=True)


def _our_tasks(dag_run: Any) -> list[str]:
    """The ids of the run's tasks that our operators are behind, as its author wrote them."""
    dag = getattr(dag_run, "dag", None)
    return [] if dag is None else [task_id for task_id, task in dag.task_dict.items() if is_ours(task)]


def _write(session: Any, dag_run: Any, ours: list[str]) -> None:
    from airflow.models.taskinstance import TaskInstance
    from airflow.models.xcom import XComModel
    from sqlalchemy import Text, cast, func, select

    said = select(XComModel.task_id, XComModel.map_index, XComModel.value).where(
        XComModel.dag_run_id == dag_run.id,
        XComModel.key == NOTE,
        XComModel.task_id.in_(ours),
        func.length(cast(XComModel.value, Text)) <= _LONGEST_XCOM,
    )
    for task_id, map_index, value in session.execute(said).all():
        task = select(TaskInstance).where(
            TaskInstance.dag_id == dag_run.dag_id,
            TaskInstance.run_id == dag_run.run_id,
            TaskInstance.task_id == task_id,
            TaskInstance.map_index == map_index,
        )
        text, instance = as_note(read_value(value)), session.scalar(task)
        if text is not None and instance is not None and _is_free(instance):
            instance.note = text


def as_note(value: Any) -> str | None:
    """A text that every database takes for a note; None for what is no text."""
    if not isinstance(value, str):
        return None
    text = value.encode("utf-8", "replace").decode("utf-8").replace("\0", "")
    return text[:_LONGEST]


def read_value(value: Any) -> Any:
    """What a task pushed, from the column that it is kept in: as JSON, or as JSON in a string."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return value


def _is_free(instance: Any) -> bool:
    """Whether nobody has written a note yet, or only we have, before a clear."""
    written = instance.task_instance_note
    return written is None or written.user_id is None
