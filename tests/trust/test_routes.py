"""Every route that the plugin adds to Airflow's API server, for every role and DAG, over HTTP."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.routing import Route

from homing.airflow.plugin import HomingPlugin, messages_page
from tests.trust.conftest import EVIL, MARKS, Trial
from tests.trust.expectations import (
    DAGS,
    FAB_USERS,
    INDEXES,
    METHODS,
    NOT_THERE,
    PAGE,
    ROUTES,
    SIMPLE_USERS,
    STRANGERS,
    WRITERS,
    target,
    with_tricks,
)
from tests.trust.server import Answer

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(1200)]

HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
}


def test_every_route_of_the_plugin_has_its_place_in_the_table() -> None:
    mounted = {f"{app['url_prefix']}{route.path}": route for app in HomingPlugin.fastapi_apps for route in routes(app)}
    found = {(method, path) for path, route in mounted.items() for method in route.methods or ()}

    assert found == set(ROUTES)
    everybody = {"SimpleAuth": {*SIMPLE_USERS, *STRANGERS}, "FAB": {*FAB_USERS, *STRANGERS}}
    for tables in ROUTES.values():
        assert {auth: set(table) for auth, table in tables.items()} == everybody
        assert all(set(seen) == set(DAGS) for table in tables.values() for seen in table.values())
    # Whatever else a plugin can add to the API server has none of these checks.
    others = ("flask_blueprints", "appbuilder_views", "appbuilder_menu_items", "fastapi_root_middlewares",
              "external_views", "react_apps", "global_operator_extra_links", "operator_extra_links")  # fmt: skip
    assert {name: getattr(HomingPlugin, name, None) for name in others} == {name: [] for name in others}


def routes(app: dict[str, Any]) -> list[Route]:
    assert app["app"]._module == messages_page.__name__
    assert all(isinstance(route, Route) for route in messages_page.app.routes)
    return [route for route in messages_page.app.routes if isinstance(route, Route)]


def test_each_role_sees_of_each_dag_what_the_table_says_and_no_more(server: Trial) -> None:
    for (method, path), tables in ROUTES.items():
        table = tables[server.auth]
        answers = {
            (who, dag): server.ask(server.token(who), method, target(dag, path=path)) for who in table for dag in DAGS
        }

        got = {who: {dag: answers[who, dag].status for dag in DAGS} for who in table}
        assert got == table
        for (who, dag), answer in answers.items():
            assert answer.headers | HEADERS == answer.headers, (who, dag)
            assert (MARKS["own"] in answer.body) == (answer.status == 200 and dag == "own"), (who, dag)
            assert (MARKS["other"] in answer.body) == (answer.status == 200 and dag == "other"), (who, dag)
            assert "content of" not in answer.body
        for who in table:
            refused = {answers[who, dag].body for dag in DAGS if got[who][dag] in (401, 403)}
            unknown = {answers[who, dag].body for dag in DAGS if got[who][dag] == 404}
            assert (len(refused) <= 1, len(unknown) <= 1) == (True, True), "the answer tells which of them exist"


def test_a_cookie_counts_like_a_token_and_a_wrong_one_like_none(server: Trial) -> None:
    def with_cookie(token: str) -> int:
        return server.ask(None, "GET", target("own"), cookie=f"_token={token}").status

    assert with_cookie(server.tokens["viewer"]) == 200
    assert {with_cookie(str(server.token(who))) for who in ("expired", "garbled", "forged")} <= {401, 403}


def test_what_hostile_people_call_their_messages_is_text_on_the_page(server: Trial) -> None:
    page = server.ask(server.token("viewer"), "GET", target("own"))

    assert "4 failed, to be replayed" in page.body
    assert "1 dead-lettered" in page.body
    for evil in EVIL:
        if not evil.isprintable() or set(evil) & set("<>\"'&"):
            assert evil not in page.body
    assert page.body.count("&lt;script&gt;alert(1)&lt;/script&gt;") >= 2
    tags = {"!doctype", "html", "head", "meta", "title", "style", "body", "h1", "p", "table", "tr", "th", "td"}
    opened = {piece.split(">")[0].split(" ")[0].lower() for piece in page.body.split("<")[1:]}
    assert opened <= tags | {f"/{tag}" for tag in tags}
    assert page.headers["content-type"] == "text/html; charset=utf-8"


def test_other_methods_and_paths_show_nothing(server: Trial) -> None:
    """HEAD, POST and the like are refused to all alike; what is beside the page does not exist."""
    for who in ("nobody", "viewer", "admin"):
        got = {method: server.ask(server.token(who), method, target("own")) for method in METHODS if method != "GET"}
        assert {answer.status for answer in got.values()} <= {405, 501, 400}, {m: a.status for m, a in got.items()}
        assert not any(mark in answer.body for answer in got.values() for mark in MARKS.values())
        for path in ("/", "/docs", "/redoc", "/openapi.json", "/messages/", "/messages/x", "/..%2fmessages", "/%00"):
            answer = server.ask(server.token(who), "GET", f"/homing{path}?dag_id=own&run_id=own_run&task_id=settle")
            assert answer.status in (307, 404), (path, answer.status)
            assert not any(mark in answer.body for mark in MARKS.values())


def test_what_is_not_there_gets_one_answer_whatever_is_missing(server: Trial) -> None:
    answers = {place: server.ask(server.token("viewer"), "GET", place) for place in NOT_THERE}

    assert {answer.status for answer in answers.values()} == {404}, {p: a.status for p, a in answers.items()}
    assert len({answer.body for answer in answers.values()}) == 1


@pytest.mark.parametrize("who", ["admin", "reader", "nothing", "nobody"])
def test_tricks_in_the_place_of_names_open_nothing_and_break_nothing(server: Trial, who: str) -> None:
    if who not in PAGE[server.auth]:
        who = "viewer"
    page = server.ask(server.token(who), "GET", target("own"))
    assert page.status == PAGE[server.auth][who]["own"]
    asked = [*with_tricks(), *(target("own", index=index) for index in INDEXES)]
    before = server.untouched()

    answers = {place: server.ask(server.token(who), "GET", place) for place in asked}

    allowed = {401} if who == "nobody" else {403, 404, 422, 400}
    for place, answer in answers.items():
        wrong = f"{place[:200]}: {answer.status} {answer.body[:300]}"
        assert answer.status in allowed or is_the_same(answer, page), wrong
        assert MARKS["other"] not in answer.body, wrong
        assert "x-evil" not in answer.headers, wrong
    assert server.untouched() == before


def is_the_same(answer: Answer, page: Answer) -> bool:
    return (answer.status, answer.body) == (page.status, page.body)


def test_a_dag_named_twice_is_checked_as_it_is_shown(server: Trial) -> None:
    """Whichever of the two counts, it is the same one for the permission and for the page."""
    who = "reader" if server.auth == "FAB" else "viewer"
    for first, second in (("own", "other"), ("other", "own")):
        for more in ("&run_id=own_run", "&run_id=other_run"):
            query = f"dag_id={first}&dag_id={second}{more}&task_id=settle"
            answer = server.ask(server.token(who), "GET", f"/homing/messages?{query}")
            if server.auth == "FAB":
                assert MARKS["other"] not in answer.body
            assert answer.status in (200, 403, 404)
            assert len([mark for mark in MARKS.values() if mark in answer.body]) <= 1


def test_airflows_own_routes_behind_the_links_keep_dags_apart(server: Trial) -> None:
    """The links of a task, and its XComs, are Airflow's to show: to those who see our page, and to no others."""
    for who, allowed in PAGE[server.auth].items():
        for dag in ("own", "other", "absent"):
            for part in ("links", "xcomEntries"):
                path = f"/api/v2/dags/{dag}/dagRuns/{dag}_run/taskInstances/settle/{part}"
                status = server.ask(server.token(who), "GET", path).status
                if allowed[dag] in (401, 403):
                    assert status in (401, 403), (who, path, status)
                else:
                    assert status == (404 if dag == "absent" and part == "links" else 200), (who, path, status)


def test_who_can_write_xcoms_is_as_the_table_says(server: Trial) -> None:
    for who, dags in WRITERS[server.auth].items():
        for dag in ("own", "other"):
            path = f"/api/v2/dags/{dag}/dagRuns/{dag}_run/taskInstances/settle/xcomEntries"
            status = server.ask(server.token(who), "POST", path, {"key": f"by {who}", "value": 1}).status
            assert status == (201 if dag in dags else 403), (who, dag, status)
