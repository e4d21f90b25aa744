"""Task notes: a task leaves a sentence about its batch; when the run has ended, the scheduler makes it the task's note.

A listener does that, because a task has no way to write a note of its own. It works in the scheduler's session, which
commits the notes along with the run's end; so nothing that a task pushed as an XCom may harm that session.
Imported by every Airflow process: keep it light.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

from airflow.listeners import hookimpl

from homing.airflow.serialized_dag import is_ours
from homing.airflow.xcoms import IDS, NOTE, read_column

log = logging.getLogger(__name__)

#: So many messages are shown at most.
SHOWN = 1000

_LONGEST = 1000  # characters, what Airflow's column takes
_LONGEST_XCOM = 10 * _LONGEST  # a longer one is not even read


def note(operator: Any, context: Any, sentence: str) -> None:
    """Logs the sentence, and leaves it for the listener that writes the task's note: a task cannot write its own."""
    operator.log.info(sentence)
    context["ti"].xcom_push(key=NOTE, value=sentence)


def show_messages(operator: Any, context: Any, ids: Sequence[str] | None = None) -> None:
    """Lets people see the messages of this run's batch, or these, from now on, and not only once the task has ended."""
    from homing.airflow.links import MessagesLink

    link, ti = MessagesLink(), context["ti"]
    if ids is not None:
        ti.xcom_push(key=IDS, value=list(ids)[:SHOWN])
    ti.xcom_push(key=link.xcom_key, value=link.get_link(operator, ti_key=ti))


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
            connection = session.connection()
            # What fails inside is undone alone. On the connection: Airflow forbids its session to commit here, even
            # to a savepoint, and a flush that fails would make that session useless.
            with connection.begin_nested():
                _write(connection, dag_run, ours)
    except Exception:
        log.warning("the notes of run %s of %s were not written", dag_run.run_id, dag_run.dag_id, exc_info=True)


def _our_tasks(dag_run: Any) -> list[str]:
    """The ids of the run's tasks that our operators are behind, as its author wrote them."""
    dag = getattr(dag_run, "dag", None)
    return [] if dag is None else [task_id for task_id, task in dag.task_dict.items() if is_ours(task)]


def _write(connection: Any, dag_run: Any, ours: list[str]) -> None:
    from airflow.models.taskinstance import TaskInstance, TaskInstanceNote
    from airflow.models.xcom import XComModel
    from sqlalchemy import Text, cast, func, select

    notes, now = TaskInstanceNote.__table__, datetime.now(timezone.utc)
    # As text: what cannot be read as JSON must not cost the other tasks their notes.
    value = cast(XComModel.value, Text)
    said = (
        select(TaskInstance.id, value, notes.c.ti_id, notes.c.user_id)
        .join(
            TaskInstance,
            (TaskInstance.dag_id == XComModel.dag_id)
            & (TaskInstance.run_id == XComModel.run_id)
            & (TaskInstance.task_id == XComModel.task_id)
            & (TaskInstance.map_index == XComModel.map_index),
        )
        .outerjoin(notes, notes.c.ti_id == TaskInstance.id)
        .where(
            XComModel.dag_run_id == dag_run.id,
            XComModel.key == NOTE,
            XComModel.task_id.in_(ours),
            func.length(value) <= _LONGEST_XCOM,
        )
    )
    for ti_id, pushed, noted, written_by in connection.execute(said).all():
        text = as_note(read_column(pushed))
        if text is None or written_by is not None:
            continue
        if noted is None:
            row = {"ti_id": ti_id, "content": text, "created_at": now, "updated_at": now}
            connection.execute(notes.insert().values(row))
        else:  # our own, from before a clear
            connection.execute(notes.update().where(notes.c.ti_id == ti_id).values(content=text, updated_at=now))


def as_note(value: Any) -> str | None:
    """A text that every database accepts as a note; None for anything but a text."""
    if not isinstance(value, str):
        return None
    text = value.encode("utf-8", "replace").decode("utf-8").replace("\0", "")
    return text[:_LONGEST]
