"""Who may see what, as tables: every route, role and DAG has its place in them, and what is missing fails the tests."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

#: The DAGs. "own" is that of the reader who may see one DAG, "other" another team's. The stores of "secret" are named
#: so that the page does not open them, those of "foreign" and "missing" cannot be opened; "plain" has no task of ours,
#: and "absent" does not exist.
DAGS = ("own", "other", "secret", "foreign", "missing", "plain", "absent")
#: What the page says of each to those who may read every DAG.
OPEN = {"own": 200, "other": 200, "secret": 200, "foreign": 503, "missing": 503, "plain": 404, "absent": 404}
OWN_ONLY = {**dict.fromkeys(DAGS, 403), "own": 200}


def nowhere(status: int) -> Mapping[str, int]:
    return dict.fromkeys(DAGS, status)


#: Credentials that are none, whatever the auth manager: missing, run out, no token at all, of another's making.
STRANGERS = {"nobody": nowhere(401), "expired": nowhere(401), "garbled": nowhere(403), "forged": nowhere(403)}

#: user: role. SimpleAuth knows no permissions by DAG: each role sees all DAGs.
SIMPLE_USERS = {"admin": "admin", "viewer": "viewer", "user": "user", "op": "op"}
FAB_USERS = {
    "admin": "Admin",
    "viewer": "Viewer",
    "user": "User",
    "op": "Op",
    "public": "Public",
    "reader": "ReaderOfOwn",
    "writer": "WriterOfOwn",
    "nothing": "Nothing",
}

#: What each user gets of the page of a task of each DAG.
PAGE: Mapping[str, Mapping[str, Mapping[str, int]]] = {
    "SimpleAuth": {**dict.fromkeys(SIMPLE_USERS, OPEN), **STRANGERS},
    "FAB": {
        **dict.fromkeys(("admin", "viewer", "user", "op"), OPEN),
        **dict.fromkeys(("reader", "writer"), OWN_ONLY),
        **dict.fromkeys(("public", "nothing"), nowhere(403)),
        **STRANGERS,
    },
}

#: Every route that the plugin adds, and who it is for.
ROUTES = {("GET", "/homing/messages"): PAGE}
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND")

#: Whose XComs a user may write: that is Airflow's to say, and shows who the forger can be.
WRITERS = {
    "SimpleAuth": {"user": ("own", "other"), "op": ("own", "other"), "viewer": ()},
    "FAB": {"writer": ("own",), "op": ("own", "other"), "user": (), "viewer": (), "reader": (), "nothing": ()},
}

#: What may stand in the place of a name: tricks with paths, encodings, lengths, SQL and markup. As they are sent.
TRICKS = (
    "..%2fown", "%2e%2e/own", "..%252f..%252fetc%252fpasswd", "own%00", "%00", "", "~", "%25", "*", "own%20", "OWN",
    "own%0d%0aX-Evil:%201", "%ff%fe", "%ed%a0%80", "%f0%9f%90%a6", "%e2%80%aeNWO", "o" * 20_000, "own'%20or%20'1'='1",
    "%3Cscript%3E", "%7B%7B7*7%7D%7D", "0", "NaN", "-1",
)  # fmt: skip
INDEXES = ("-2", "0", "7", "2147483648", "9" * 30, "1e3", "x", "%00", "", "-1.5", "%D9%A3")
NAMES = ("dag_id", "run_id", "task_id")


def target(
    dag: str, *, run: str | None = None, task: str = "settle", index: str | None = None, path: str = "/homing/messages"
) -> str:
    """The page of a task, or another route about it."""
    at = "" if index is None else f"&map_index={index}"
    return f"{path}?dag_id={dag}&run_id={run or f'{dag}_run'}&task_id={task}{at}"


#: Places of the own DAG that do not exist: the same answer for each.
NOT_THERE = (
    *(target("own", run=run) for run in ("none", "other_run", "plain_run", "..%2fown_run")),
    *(target("own", task=task) for task in ("none", "deliver.none", "deliver")),
    *(target("own", index=index) for index in ("0", "7", "2147483647")),
)


def with_tricks() -> list[str]:
    """The page of the own DAG's task with each trick in the place of each name."""
    own = {"dag_id": "own", "run_id": "own_run", "task_id": "settle"}
    asked = [{**own, name: trick} for name, trick in product(NAMES, TRICKS)]
    return ["/homing/messages?" + "&".join(f"{name}={value}" for name, value in each.items()) for each in asked]
