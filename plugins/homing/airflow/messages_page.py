"""What became of the messages of a task's batch, as a page of Airflow's API server. Reads only, and shows no content.

Whoever may read the XComs of the DAG may see it: the task left there which stores to ask. Loaded on first use.
"""

from __future__ import annotations

import logging
from collections import Counter
from html import escape
from typing import Any

from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.core_api.security import requires_access_dag
from airflow.models.xcom import XComModel
from airflow.utils.session import create_session
from fastapi import Depends, FastAPI, HTTPException
from fastapi.responses import HTMLResponse
from sqlalchemy import select

from homing.airflow.notes import read_value
from homing.airflow.server import find_url
from homing.airflow.telling import BATCH, SHOWN
from homing.delivery import open_pipeline_stores
from homing.delivery.stories import Story, tell
from homing.errors import HomingError

log = logging.getLogger(__name__)

# Nothing but the page itself: what a message's error says must not become a script.
_HEADERS = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'", "Cache-Control": "no-store"}
_STYLE = "body{font:14px sans-serif;margin:2em}table{border-collapse:collapse}td,th{padding:.2em .8em;text-align:left}"

app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)


@app.get("/messages", dependencies=[Depends(requires_access_dag("GET", DagAccessEntity.XCOM))])
def messages(dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> HTMLResponse:
    """The page of one task."""
    about = _about(dag_id, run_id, task_id, map_index)
    if about is None:
        raise HTTPException(404, "this task has shown no messages, or was cleared since")
    if about["store"] is None or about["dead_letter_store"] is None:
        text = (
            "<p>The pipeline names its store by a URL, which is kept from Airflow's database. Name it by a connection "
            "or as env:NAME to see its messages here, or use <code>homing show</code>.</p>"
        )
        return _page(about, text)
    try:
        with open_pipeline_stores(find_url(about["store"]), find_url(about["dead_letter_store"])) as stores:
            batch = about["batch"] if about["ids"] is None else None
            found = tell(stores, about["flows"], batch_id=batch, ids=about["ids"] or (), limit=SHOWN)
    except HomingError:
        log.exception("cannot show the messages of %s", about["batch"])
        raise HTTPException(503, "the pipeline's stores cannot be asked from here: see the API server's log") from None
    return _page(about, _sums(found) + _table(found, about["flows"]))


def _about(dag_id: str, run_id: str, task_id: str, map_index: int) -> dict[str, Any] | None:
    left = select(XComModel.value).where(
        XComModel.dag_id == dag_id,
        XComModel.run_id == run_id,
        XComModel.task_id == task_id,
        XComModel.map_index == map_index,
        XComModel.key == BATCH,
    )
    with create_session() as session:
        value = session.scalar(left)
    found = read_value(value)
    return found if isinstance(found, dict) else None


def _page(about: dict[str, Any], body: str) -> HTMLResponse:
    title = escape(f"Messages of {about['batch']}")
    head = f"<head><meta charset=utf-8><title>{title}</title><style>{_STYLE}</style></head>"
    return HTMLResponse(f"<!doctype html><html>{head}<body><h1>{title}</h1>{body}</body></html>", headers=_HEADERS)


def _sums(found: list[Story]) -> str:
    sums = Counter(story.outcome for story in found)
    most = f" These are the first {SHOWN}." if len(found) == SHOWN else ""
    return f"<p>{', '.join(f'{number} {escape(name)}' for name, number in sums.items()) or 'none'}.{most}</p>"


def _table(found: list[Story], flows: list[str]) -> str:
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
