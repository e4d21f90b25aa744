"""What a task says of its batch: a sentence, in its log and as its note, and where its messages can be seen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from homing.airflow.hook import is_url
from homing.airflow.links import MessagesLink

#: XComs that others read: `homing.airflow.notes` the first, `homing.airflow.messages_page` the second.
NOTE = "homing_note"
BATCH = "homing_batch"
#: So many messages are shown at most.
SHOWN = 1000


def note(operator: Any, context: Any, sentence: str) -> None:
    """Logs the sentence, and leaves it for whoever writes the task's note: a task cannot write its own."""
    operator.log.info(sentence)
    context["ti"].xcom_push(key=NOTE, value=sentence)


def show_messages(operator: Any, context: Any, ids: Sequence[str] | None = None) -> None:
    """Lets people see the messages of this run's batch, or these, from now on, and not only once the task has ended."""
    link, ti, pipeline = MessagesLink(), context["ti"], operator.pipeline
    ti.xcom_push(
        key=BATCH,
        value={
            "batch": pipeline.run_key(context),
            "ids": None if ids is None else list(ids)[:SHOWN],
            "flows": list(pipeline.flows),
            "store": _reference(pipeline.store),
            "dead_letter_store": _reference(pipeline.dead_letter_store),
        },
    )
    ti.xcom_push(key=link.xcom_key, value=link.get_link(operator, ti_key=ti))


def _reference(store: str) -> str | None:
    """The store as the author named it, unless that is a URL, which may hold a password."""
    return None if is_url(store) and not store.startswith("env:") else store
