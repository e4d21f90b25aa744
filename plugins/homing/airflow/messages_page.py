"""What became of the messages of a task's batch, as a page of Airflow's API server. Reads only, and shows no content.

Which stores it asks stands in the serialized DAG, and which batch follows from the run: whoever can write an XCom of a
DAG has no say in either. Loaded on first use.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.core_api.security import requires_access_dag
from airflow.models.dagbag import DBDagBag
from airflow.models.dagrun import DagRun
from airflow.models.xcom import XComModel
from airflow.utils.session import create_session
from fastapi import Depends, FastAPI, HTTPException
from fastapi.responses import HTMLResponse
from sqlalchemy import select
from sqlalchemy.orm import Session

from homing.airflow.notes import read_value
from homing.airflow.pipeline import batch_id
from homing.airflow.serialized import PipelineReference, pipeline_of
from homing.airflow.server import find_public_url
from homing.airflow.telling import IDS, SHOWN
from homing.delivery import open_pipeline_stores
from homing.delivery.stories import Story, tell
from homing.errors import HomingError

log = logging.getLogger(__name__)

# Nothing but the page itself: what a message's error says must not become a script.
_HEADERS = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'", "Cache-Control": "no-store"}
_STYLE = "body{font:14px sans-serif;margin:2em}table{border-collapse:collapse}td,th{padding:.2em .8em;text-align:left}"

app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)


@dataclass(frozen=True)
class TaskMessages:
    """Which messages a task is about, and where they are."""

    batch: str
    pipeline: PipelineReference
    #: What a replay selected; None for a task that is about its run's batch.
    ids: Sequence[str] | None = None


@app.get("/messages", dependencies=[Depends(requires_access_dag("GET", DagAccessEntity.XCOM))])
def messages(dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> HTMLResponse:
    """The page of one task."""
    with create_session() as session:
        about = _about(session, dag_id, run_id, task_id, map_index)
    if about is None:
        raise HTTPException(404, "there is no such task, or it handles no messages")
    pipeline = about.pipeline
    if pipeline.store is None or pipeline.dead_letter_store is None:
        text = (
            "<p>This page opens only stores that the DAG names by a connection of the type <code>homing</code>, or as "
            "a SQLite file. Name the pipeline's stores so to see its messages here, or use <code>homing show</code>."
            "</p>"
        )
        return _page(about, text)
    try:
        urls = find_public_url(pipeline.store), find_public_url(pipeline.dead_letter_store)
        with open_pipeline_stores(*urls, read_only=True) as stores:
            batch = about.batch if about.ids is None else None
            found = tell(stores, pipeline.flows, batch_id=batch, ids=about.ids or (), limit=SHOWN)
    except HomingError:
        log.exception("cannot show the messages of %s", about.batch)
        raise HTTPException(503, "the pipeline's stores cannot be asked from here: see the API server's log") from None
    return _page(about, _sums(found) + _table(found, pipeline.flows))


def _about(session: Session, dag_id: str, run_id: str, task_id: str, map_index: int) -> TaskMessages | None:
    """What the DAG, as its author wrote it, says of this task; None where it says nothing."""
    run = session.scalar(select(DagRun).where(DagRun.dag_id == dag_id, DagRun.run_id == run_id))
    dag = None if run is None else DBDagBag(load_op_links=False).get_dag_for_run(run, session=session)
    task = None if dag is None else dag.task_dict.get(task_id)
    pipeline = None if task is None else pipeline_of(task)
    if pipeline is None:
        return None
    chosen = select(XComModel.value).where(
        XComModel.dag_id == dag_id,
        XComModel.run_id == run_id,
        XComModel.task_id == task_id,
        XComModel.map_index == map_index,
        XComModel.key == IDS,
    )
    ids = _read_ids(session.scalar(chosen))
    return TaskMessages(batch_id(dag_id, run_id, pipeline.group), pipeline, ids)


def _read_ids(value: object) -> list[str] | None:
    """The ids that a replay left. They choose among the pipeline's own messages, and nothing else."""
    ids = read_value(value)
    if not isinstance(ids, list):
        return None
    return [each for each in ids if isinstance(each, str)][:SHOWN]


def _page(about: TaskMessages, body: str) -> HTMLResponse:
    title = escape(f"Messages of {about.batch}")
    head = f"<head><meta charset=utf-8><title>{title}</title><style>{_STYLE}</style></head>"
    return HTMLResponse(f"<!doctype html><html>{head}<body><h1>{title}</h1>{body}</body></html>", headers=_HEADERS)


def _sums(found: list[Story]) -> str:
    sums = Counter(story.outcome for story in found)
    most = f" These are the first {SHOWN}." if len(found) == SHOWN else ""
    return f"<p>{', '.join(f'{number} {escape(name)}' for name, number in sums.items()) or 'none'}.{most}</p>"


def _table(found: list[Story], flows: Sequence[str]) -> str:
    heads = "".join(f"<th>{escape(name)}</th>" for name in ("message", "outcome", "source flow", *flows))
    lines = []
    for story in found:
        cells = [escape(story.message_id), escape(story.outcome), *(_cell(story, flow) for flow in ("", *flows))]
        lines.append(f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
    return f"<table><tr>{heads}</tr>{''.join(lines)}</table>"


def _cell(story: Story, flow: str) -> str:
    entry = story.entries.get(flow)
    if entry is None:
        return ""
    error = "" if entry.error is None or entry.done else f": {entry.error.get('type')}: {entry.error.get('message')}"
    return escape(f"{entry.state}{error}")
