"""What became of the messages of a task's batch, as a page of Airflow's API server. Reads only, and shows no content.

It takes the stores from the serialized DAG, and the batch from the run. It takes neither from an XCom: a user who may
write XComs must not choose them. Loaded on first use.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Annotated, Any

from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.core_api.security import requires_access_dag, requires_authenticated
from airflow.models.dagbag import DBDagBag
from airflow.models.dagrun import DagRun
from airflow.models.xcom import XComModel
from airflow.utils.session import create_session
from fastapi import Depends, FastAPI, HTTPException, Query, Request
from fastapi.responses import HTMLResponse
from sqlalchemy import Text, cast, func, select
from sqlalchemy.orm import Session

from homing.airflow.hooks.store import find_public_url
from homing.airflow.pipeline_config import batch_id
from homing.airflow.serialized_dag import PipelineReference, pipeline_of
from homing.airflow.task_notes import SHOWN
from homing.airflow.xcoms import IDS, read_column
from homing.delivery import open_pipeline_stores
from homing.delivery.status import MessageStatus, message_status
from homing.errors import HomingError
from homing.printable import printable

log = logging.getLogger(__name__)

# Nothing but the page itself: what a message's error says must not become a script, and no other site is to show it.
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
_STYLE = "body{font:14px sans-serif;margin:2em}table{border-collapse:collapse}td,th{padding:.2em .8em;text-align:left}"

# What so many ids can take as JSON, each of their characters escaped; a longer XCom is not even read.
_LONGEST_IDS = 2_000_000
_LAST_INDEX = 2**31 - 1  # of Airflow's column

app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)


@app.middleware("http")
async def add_headers(request: Request, call_next: Any) -> Any:
    """The headers that say how a browser may use an answer: a refusal has them too."""
    answer = await call_next(request)
    answer.headers.update(_HEADERS)
    return answer


def refuse_nul(request: Request) -> None:
    """No name has this character, and PostgreSQL takes no text with it: asking would fail, and look like our fault."""
    if any("\0" in text for text in request.query_params.values()):
        raise _not_found()


@dataclass(frozen=True)
class TaskMessages:
    """Which messages a task is about, and where they are."""

    batch: str
    pipeline: PipelineReference
    #: What a replay selected; None for a task that is about its run's batch.
    ids: Sequence[str] | None = None


@app.get(
    "/messages",
    dependencies=[
        Depends(requires_authenticated()),
        Depends(refuse_nul),
        Depends(requires_access_dag("GET", DagAccessEntity.XCOM)),
    ],
)
def messages(
    dag_id: str, run_id: str, task_id: str, map_index: Annotated[int, Query(ge=-1, le=_LAST_INDEX)] = -1
) -> HTMLResponse:
    """The page of one task."""
    with create_session() as session:
        about = _about(session, dag_id, run_id, task_id, map_index)
    if about is None:
        raise _not_found()
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
            found = message_status(stores, pipeline.flows, batch_id=batch, ids=about.ids or (), limit=SHOWN)
    except HomingError:
        log.exception("cannot show the messages of %s", about.batch)
        raise HTTPException(503, "the pipeline's stores cannot be asked from here: see the API server's log") from None
    return _page(about, _sums(found) + _table(found, pipeline.flows))


def _not_found() -> HTTPException:
    return HTTPException(404, "the task does not exist, or handles no messages")


def _about(session: Session, dag_id: str, run_id: str, task_id: str, map_index: int) -> TaskMessages | None:
    """What the DAG, as its author wrote it, says of this task; None where it says nothing."""
    run = session.scalar(select(DagRun).where(DagRun.dag_id == dag_id, DagRun.run_id == run_id))
    if run is None or run.get_task_instance(task_id, session=session, map_index=map_index) is None:
        return None
    dag = DBDagBag(load_op_links=False).get_dag_for_run(run, session=session)
    task = None if dag is None else dag.task_dict.get(task_id)
    pipeline = None if task is None else pipeline_of(task)
    if task is None or pipeline is None:
        return None
    return TaskMessages(
        batch_id(dag_id, run_id, pipeline.group),
        pipeline,
        _ids_of(session, dag_id, run_id, task_id, map_index) if "ids" in task.template_fields else None,
    )


def _ids_of(session: Session, dag_id: str, run_id: str, task_id: str, map_index: int) -> list[str] | None:
    """The ids that a replay left. They choose among the pipeline's own messages, and nothing else."""
    value = cast(XComModel.value, Text)
    chosen = select(value).where(
        XComModel.dag_id == dag_id,
        XComModel.run_id == run_id,
        XComModel.task_id == task_id,
        XComModel.map_index == map_index,
        XComModel.key == IDS,
        func.length(value) <= _LONGEST_IDS,
    )
    ids = read_column(session.scalar(chosen))
    if not isinstance(ids, list):
        return None
    return [each for each in ids if isinstance(each, str)][:SHOWN]


def _page(about: TaskMessages, body: str) -> HTMLResponse:
    title = _safe(f"Messages of {about.batch}")
    head = f"<head><meta charset=utf-8><title>{title}</title><style>{_STYLE}</style></head>"
    return HTMLResponse(f"<!doctype html><html>{head}<body><h1>{title}</h1>{body}</body></html>")


def _sums(found: list[MessageStatus]) -> str:
    sums = Counter(status.outcome for status in found)
    most = f" These are the first {SHOWN}." if len(found) == SHOWN else ""
    return f"<p>{', '.join(f'{number} {escape(name)}' for name, number in sums.items()) or 'none'}.{most}</p>"


def _table(found: list[MessageStatus], flows: Sequence[str]) -> str:
    heads = "".join(f"<th>{_safe(name)}</th>" for name in ("message", "outcome", "source flow", *flows))
    lines = []
    for status in found:
        cells = [_safe(status.message_id), _safe(status.outcome), *(_cell(status, flow) for flow in ("", *flows))]
        lines.append(f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
    return f"<table><tr>{heads}</tr>{''.join(lines)}</table>"


def _cell(status: MessageStatus, flow: str) -> str:
    entry = status.entries.get(flow)
    if entry is None:
        return ""
    error = "" if entry.error is None or entry.done else f": {entry.error.get('type')}: {entry.error.get('message')}"
    return _safe(f"{entry.state}{error}")


def _safe(text: str) -> str:
    """Text of others as a part of the page: no markup, and no character that hides, turns round or cannot be sent."""
    return escape(printable(text))
