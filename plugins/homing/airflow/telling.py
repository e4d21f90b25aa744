"""What a task says of its batch: a sentence, in its log and as its note, and where its messages can be seen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from homing.airflow.links import MessagesLink
from homing.airflow.xcoms import IDS, NOTE

#: So many messages are shown at most.
SHOWN = 1000


def note(operator: Any, context: Any, sentence: str) -> None:
    """Logs the sentence, and leaves it for whoever writes the task's note: a task cannot write its own."""
    operator.log.info(sentence)
    context["ti"].xcom_push(key=NOTE, value=sentence)


def show_messages(operator: Any, context: Any, ids: Sequence[str] | None = None) -> None:
    """Lets people see the messages of this run's batch, or these, from now on, and not only once the task has ended."""
    link, ti = MessagesLink(), context["ti"]
    if ids is not None:
        ti.xcom_push(key=IDS, value=list(ids)[:SHOWN])
    ti.xcom_push(key=link.xcom_key, value=link.get_link(operator, ti_key=ti))
