"""Forged XComs: whatever a person who may write them writes, the API server opens, makes and shows nothing more."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any
from urllib.parse import quote

import pytest

from homing.airflow import links, xcoms
from homing.airflow.serialized_dag import FIELD
from homing.errors import ConfigurationError, HomingError
from homing.stores import open_store
from tests.trust.conftest import EVIL, MARKS, Trial
from tests.trust.expectations import target
from tests.trust.rogue import RogueServer

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(1200)]

LINKS = [getattr(links, name)().xcom_key for name in ("MessagesLink", "SparkLink", "ReplayLink")]
#: Every key of ours, and names under which somebody may hope to be believed.
KEYS = (*sorted(xcoms.READ), xcoms.PLAN, *LINKS, FIELD, "store", "dead_letter_store", "batch", "homing_batch", "ids")
#: Where they are forged. The first two have pages; a replay is what reads its ids.
TASKS = (("own", "settle"), ("own_replay", "replay"), ("other", "settle"))
#: As they can stand in Airflow's column though its API would not take them.
LONG = 3_000_000
RAW = (
    "[" * 5_000 + "]" * 5_000,
    "NaN",
    "-Infinity",
    r'"\ud800"',
    r'["\ud800", "a\u0000b"]',
    "1" * 5_000,
    "",
    "{",
    r'"\"["',
)


def hostile(server: Trial) -> Iterator[Any]:
    places = (
        server.rogue.url,
        f"sqlite:///{server.files}/evil.db?store=x",
        "env:AIRFLOW__DATABASE__SQL_ALCHEMY_CONN",
        "env:AIRFLOW_CONN_OTHER_STORE",
        "other_store",
        server.urls("other")[0],
        "javascript:alert(document.cookie)",
        "file:///etc/passwd",
    )
    yield from places
    for place in places:
        stores = {"store": place, "dead_letter_store": place}
        yield {**stores, "batch": "other/other_run", "ids": None, "flows": ["crm"], "group": ""}
    yield from (None, True, 17, -1.5e300, 10**30, [], {}, "", [None, 5, {}, ["a"]], {"a": {"b": [{}] * 50}}, list(EVIL))
    yield [f"{MARKS['other']} {evil}" for evil in EVIL]
    yield "x" * LONG
    yield ["y" * 1_000] * (LONG // 1_000)


def test_forged_xcoms_open_make_and_show_nothing(server: Trial) -> None:
    """The first value comes over Airflow's API; the others stand where it would have put them."""
    forger = server.token("op" if server.auth == "FAB" else "user")
    shown_to = server.token("reader" if server.auth == "FAB" else "viewer")
    before, pages = server.untouched(), {task: page(server, shown_to, *task) for task in TASKS}
    chosen = 0

    for dag, task in TASKS:
        for key in KEYS:
            write(server, forger, (dag, task), key, server.rogue.url)
    for value in hostile(server):
        put_into_columns(server, json.dumps(value))
        for dag, task in TASKS:
            answer = page(server, shown_to, dag, task)
            if task == "replay" and isinstance(value, list):
                chosen += 1
                # Its ids choose among the messages of this pipeline: what it does not have is unknown.
                assert answer[0] == 200
                assert "failed" not in answer[1]
            else:
                assert answer == pages[dag, task], (dag, task, str(value)[:100])
            if dag != "other":
                path = f"/api/v2/dags/{dag}/dagRuns/{dag}_run/taskInstances/{task}/links"
                assert server.ask(shown_to, "GET", path).status == 200

    assert chosen > 3
    assert server.untouched() == before


def test_what_airflows_api_would_not_take_harms_the_page_as_little(server: Trial) -> None:
    admin = server.token("admin")
    for dag, task in TASKS:
        write(server, admin, (dag, task), xcoms.IDS, [])
    try:
        for raw in RAW:
            put_into_columns(server, raw)
            for dag, task in TASKS:
                status, body = page(server, admin, dag, task)
                assert status == 200, (raw[:50], body)
                if task == "replay" and raw.startswith('["'):
                    assert all(text in body for text in (r"<td>\ud800</td>", r"<td>a\x00b</td>", "2 unknown"))
    finally:
        put_into_columns(server, "[]")  # with some of these, Airflow's own routes fail


def put_into_columns(server: Trial, raw: str) -> None:
    """Makes this the value of every forged XCom, or of the one that the page reads, if it is long."""
    keys = KEYS if len(raw) < LONG else (xcoms.IDS,)
    with closing(sqlite3.connect(server.home / "airflow.db", timeout=60)) as metadata, metadata:
        metadata.executemany("update xcom set value = ? where key = ?", [(raw, key) for key in keys])


def test_a_replay_cannot_be_asked_for_with_params_of_another_type(server: Trial) -> None:
    """Airflow checks the form that we give it, also when nobody fills it in."""
    forged: list[dict[str, Any]] = [
        {"ids": "a text"},
        {"ids": [1, {}]},
        {"batch": ["other/other_run"]},
        {"batch": {"store": server.rogue.url}},
        {"limit": "all"},
        {"limit": -1},
        {"rate": 0},
        {"rate": "{{ 7*7 }}"},
        {"error_group": 5},
        {"dry_run": "no"},
    ]
    for conf in forged:
        asked = {"logical_date": None, "conf": conf}
        answer = server.ask(server.token("admin"), "POST", "/api/v2/dags/own_replay/dagRuns", asked)
        assert answer.status in (400, 422), (conf, answer.status, answer.body)


def test_the_rogue_notices_who_calls_and_is_refused_before_it_could_ask_for_files() -> None:
    """So that its silence in the other tests means something."""
    with RogueServer() as rogue:
        with pytest.raises(ConfigurationError, match="local_infile"):
            open_store(rogue.url)
        assert rogue.calls == 0
        with pytest.raises(HomingError), open_store(rogue.url.replace("&local_infile=1", "&timeout=2")) as store:
            store.count()
        assert rogue.calls > 0


def page(server: Trial, token: str | None, dag: str, task: str) -> tuple[int, str]:
    answer = server.ask(token, "GET", target(dag, task=task))
    return answer.status, answer.body


def write(server: Trial, token: str | None, at: tuple[str, str], key: str, value: Any) -> None:
    dag, task = at
    entries = f"/api/v2/dags/{dag}/dagRuns/{dag}_run/taskInstances/{task}/xcomEntries"
    made = server.ask(token, "POST", entries, {"key": key, "value": value})
    if made.status == 409:
        made = server.ask(token, "PATCH", f"{entries}/{quote(key)}", {"value": value})
    assert made.status in (200, 201), (key, json.dumps(value)[:100], made.status, made.body[:300])
