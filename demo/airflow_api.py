"""A small client of Airflow's public REST API.

    AirflowApiError
     ├─ AirflowUnreachableError   nothing answered at the address in time
     └─ AirflowTimeoutError       an awaited state was not reached in time

Every call is bounded in time. An instance is not thread-safe: it caches one token.
"""

from __future__ import annotations

import json as jsonlib
import time
from collections.abc import Callable, Collection, Iterable
from http import HTTPStatus
from typing import Any, TypeVar
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode
from urllib.request import ProxyHandler, Request, build_opener

T = TypeVar("T")

FINISHED = frozenset({"success", "failed"})
_PAGE = 100
#: Seconds a call may take: with its metadata in SQLite the server waits up to a minute for each other writer.
ANSWERS_WITHIN = 150.0
# Airflow listens on this machine: a proxy set in the environment must not see the calls.
_OPENER = build_opener(ProxyHandler({}))


class AirflowApiError(RuntimeError):
    """Airflow refused a call, or could not be asked. `status` is the HTTP status, if there was an answer."""

    def __init__(self, text: str, status: int | None = None) -> None:
        super().__init__(text)
        self.status = status


class AirflowUnreachableError(AirflowApiError):
    """The API server did not answer."""


class AirflowTimeoutError(AirflowApiError):
    """What was waited for did not happen in time; the text says what was seen last."""


def wait_until(check: Callable[[], T | None], *, timeout: float, what: Callable[[], str], every: float = 0.5) -> T:
    """The first value of `check` that is not None; after `timeout` seconds AirflowTimeoutError is raised."""
    deadline = time.monotonic() + timeout
    while (found := check()) is None:
        if time.monotonic() > deadline:
            raise AirflowTimeoutError(f"waited {timeout:.0f} s for {what()}")
        time.sleep(every)
    return found


def _path(*parts: str) -> str:
    return "/" + "/".join(quote(part, safe="") for part in parts)


def _run_path(dag_id: str, run_id: str, *more: str) -> str:
    return _path("dags", dag_id, "dagRuns", run_id, *more)


class AirflowApi:
    """The REST API of one Airflow, logged in as one user. A subclass or the caller says where and who."""

    def __init__(self, url: str, username: str, password: str) -> None:
        self._url, self._username, self._password = url, username, password
        self._token: str | None = None

    @property
    def url(self) -> str:
        """Where the UI and the API answer, without a trailing slash."""
        return self._url

    def credentials(self) -> tuple[str, str]:
        """The user name and the password to log in with."""
        return self._username, self._password

    def http(
        self, method: str, path: str, json: object = None, *, token: str | None = None, timeout: float = ANSWERS_WITHIN
    ) -> Any:
        """Send one request to `path` below `url`; return the decoded JSON, the text, or None when empty.

        Raises AirflowApiError with the status and the server's own words for any status from 400 on.
        """
        headers = {"Accept": "application/json"}
        if json is not None:
            headers["Content-Type"] = "application/json"
        if token:
            headers["Authorization"] = f"Bearer {token}"
        body = None if json is None else jsonlib.dumps(json).encode()
        request = Request(self.url + path, data=body, method=method, headers=headers)  # noqa: S310 (http only)
        try:
            with _OPENER.open(request, timeout=timeout) as answer:
                text, kind = answer.read().decode(), answer.headers.get_content_type()
        except HTTPError as error:
            detail = error.read().decode(errors="replace")[:2000]
            raise AirflowApiError(f"{method} {path}: HTTP {error.code}: {detail}", error.code) from error
        except (URLError, OSError) as error:
            raise AirflowUnreachableError(f"{method} {path}: no answer from {self.url}: {error}") from error
        if not text:
            return None
        return jsonlib.loads(text) if kind == "application/json" else text

    def token(self) -> str:
        """A bearer token of this user; asked for once."""
        if self._token is None:
            username, password = self.credentials()
            answer = self.http("POST", "/auth/token", {"username": username, "password": password})
            self._token = str(answer["access_token"])
        return self._token

    def api(self, method: str, path: str, json: object = None, *, timeout: float = ANSWERS_WITHIN) -> Any:
        """Call the public API: `path` is what follows /api/v2. Logs in again when the token has run out."""
        path = "/api/v2" + path
        try:
            return self.http(method, path, json, token=self.token(), timeout=timeout)
        except AirflowApiError as error:
            if error.status != HTTPStatus.UNAUTHORIZED:
                raise
        self._token = None
        return self.http(method, path, json, token=self.token(), timeout=timeout)

    def _pages(self, path: str, key: str, **query: object) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        while True:
            options = urlencode({**query, "limit": _PAGE, "offset": len(found)})
            page = self.api("GET", f"{path}?{options}")[key]
            found += page
            if len(page) < _PAGE:
                return found

    def health(self) -> dict[str, Any]:
        """What Airflow says of its own components, with their last heartbeats. Needs no login."""
        answer: dict[str, Any] = self.http("GET", "/api/v2/monitor/health", timeout=10.0)
        return answer

    def unpause(self, dag_id: str, *, paused: bool = False) -> None:
        """Let the scheduler run this DAG; with `paused=True` stop it from making new runs.

        Asked again when Airflow cannot answer: its SQLite has one writer, which may be busy for longer than it waits.
        """
        for left in reversed(range(3)):
            try:
                self.api("PATCH", _path("dags", dag_id), {"is_paused": paused})
            except AirflowApiError as error:
                if error.status != HTTPStatus.INTERNAL_SERVER_ERROR or not left:
                    raise
            else:
                return

    def trigger(self, dag_id: str, conf: dict[str, Any] | None = None, run_id: str | None = None) -> str:
        """Make a run and return its id. A run id that exists raises AirflowApiError, status 409."""
        body: dict[str, Any] = {"logical_date": None, "conf": conf or {}}
        if run_id is not None:
            body["dag_run_id"] = run_id
        return str(self.api("POST", _path("dags", dag_id, "dagRuns"), body)["dag_run_id"])

    def runs(self, dag_id: str) -> list[dict[str, Any]]:
        """Every run of the DAG, oldest first."""
        return self._pages(_path("dags", dag_id, "dagRuns"), "dag_runs", order_by="id")

    def run(self, dag_id: str, run_id: str) -> dict[str, Any]:
        """One run; status 404 when there is none of that id."""
        answer: dict[str, Any] = self.api("GET", _run_path(dag_id, run_id))
        return answer

    def task_instances(self, dag_id: str, run_id: str) -> list[dict[str, Any]]:
        """The task instances of one run."""
        return self._pages(_run_path(dag_id, run_id, "taskInstances"), "task_instances")

    def task_instance(self, dag_id: str, run_id: str, task_id: str) -> dict[str, Any]:
        """One task instance, of a task that is not mapped."""
        answer: dict[str, Any] = self.api("GET", _run_path(dag_id, run_id, "taskInstances", task_id))
        return answer

    def task_states(self, dag_id: str, run_id: str) -> dict[str, str | None]:
        """State by task id, for runs without mapped tasks."""
        return {task["task_id"]: task["state"] for task in self.task_instances(dag_id, run_id)}

    def wait_for_run(
        self, dag_id: str, run_id: str, states: Collection[str] = FINISHED, timeout: float = 120.0
    ) -> dict[str, Any]:
        """Wait until the run (which may not exist yet) is in one of `states`; return it.

        Raises AirflowTimeoutError with the states of its tasks, and AirflowApiError at once when the run has
        finished in another state.
        """
        seen: dict[str, Any] = {}

        def check() -> dict[str, Any] | None:
            try:
                seen.update(self.run(dag_id, run_id))
            except AirflowApiError as error:
                if error.status != HTTPStatus.NOT_FOUND:
                    raise
            if seen.get("state") in FINISHED - set(states):
                raise AirflowApiError(f"{describe()}, which is final")
            return seen if seen.get("state") in states else None

        def describe() -> str:
            tasks = self.task_states(dag_id, run_id) if seen else {}
            wanted, state = "/".join(sorted(states)), seen.get("state", "missing")
            return f"run {run_id} of {dag_id} to be {wanted}; it is {state}, tasks {tasks}"

        return wait_until(check, timeout=timeout, what=describe)

    def wait_for_dag(self, dag_id: str, timeout: float = 60.0) -> dict[str, Any]:
        """Wait until the DAG is parsed and can be triggered; the error names the files that do not import."""

        def check() -> dict[str, Any] | None:
            try:
                dag: dict[str, Any] = self.api("GET", _path("dags", dag_id))
            except AirflowApiError as error:
                if error.status != HTTPStatus.NOT_FOUND:
                    raise
                return None
            return None if dag["is_stale"] else dag

        def describe() -> str:
            return f"DAG {dag_id} to be parsed; import errors: {self.dag_import_errors() or 'none'}"

        return wait_until(check, timeout=timeout, what=describe)

    def dag_import_errors(self) -> dict[str, str]:
        """Stack trace by file, for the DAG files that could not be imported."""
        return {e["filename"]: e["stack_trace"] for e in self._pages("/importErrors", "import_errors")}

    def clear(
        self,
        dag_id: str,
        run_id: str,
        task_ids: Iterable[str],
        *,
        only_failed: bool = False,
        include_downstream: bool = False,
    ) -> list[str]:
        """Clear tasks of one run so that they run again; return the ids of what was cleared.

        Airflow adds the setup and the teardown of a cleared task by itself. On return the run is queued.
        """
        body = {
            "dry_run": False,
            "dag_run_id": run_id,
            "task_ids": list(task_ids),
            "only_failed": only_failed,
            "include_downstream": include_downstream,
            "reset_dag_runs": True,
        }
        cleared = self.api("POST", _path("dags", dag_id, "clearTaskInstances"), body)
        return sorted(task["task_id"] for task in cleared["task_instances"])

    def answer(self, dag_id: str, run_id: str, task_id: str, option: str, timeout: float = 120.0) -> dict[str, Any]:
        """Wait until a task asks a person and waits for it, choose this option for it, and return what it had asked."""

        def check() -> dict[str, Any] | None:
            asked = self._pages(_run_path(dag_id, run_id, "hitlDetails"), "hitl_details")
            mine = (each for each in asked if each["task_instance"]["task_id"] == task_id)
            open_ones = (each for each in mine if not each["response_received"])
            # Not while its process still runs: Airflow may then take the end of that process for the answer's.
            return next((each for each in open_ones if each["task_instance"]["state"] == "awaiting_input"), None)

        question = wait_until(check, timeout=timeout, what=lambda: f"{dag_id}.{task_id} to ask somebody")
        path = _run_path(dag_id, run_id, "taskInstances", task_id, "-1", "hitlDetails")
        self.api("PATCH", path, {"chosen_options": [option], "params_input": {}})
        return question

    def mark_failed(self, dag_id: str, run_id: str, task_id: str | None = None) -> None:
        """Mark one task of a run as failed, or the whole run; what runs of it is ended."""
        if task_id is None:
            self.api("PATCH", _run_path(dag_id, run_id), {"state": "failed"})
        else:
            self.api("PATCH", _run_path(dag_id, run_id, "taskInstances", task_id), {"new_state": "failed"})

    def xcom(self, dag_id: str, run_id: str, task_id: str, key: str = "return_value") -> Any:
        """The value a task pushed, as JSON; status 404 when there is none."""
        return self.api("GET", _run_path(dag_id, run_id, "taskInstances", task_id, "xcomEntries", key))["value"]

    def extra_links(self, dag_id: str, run_id: str, task_id: str) -> dict[str, str | None]:
        """Address by name, of the links that a task instance has; None for one that leads nowhere yet."""
        links: dict[str, str | None] = self.api("GET", _run_path(dag_id, run_id, "taskInstances", task_id, "links"))[
            "extra_links"
        ]
        return links

    def task_log(self, dag_id: str, run_id: str, task_id: str, try_number: int = 1) -> str:
        """The log of one try, one line per event, with the traceback of an event that has one."""
        path = _run_path(dag_id, run_id, "taskInstances", task_id, "logs", str(try_number))
        answer = self.api("GET", f"{path}?full_content=true")
        return "\n".join(_log_line(event) for event in answer["content"])


def _log_line(event: str | dict[str, Any]) -> str:
    if isinstance(event, str):
        return event
    text = " ".join(str(event[key]) for key in ("timestamp", "level", "event") if event.get(key))
    return "\n".join([text, *_traceback_lines(event.get("error_detail") or [])])


def _traceback_lines(errors: list[dict[str, Any]]) -> list[str]:
    lines = []
    for error in reversed(errors):
        lines += [f"  {f['filename']}:{f['lineno']} in {f['name']}" for f in error.get("frames") or []]
        lines.append(f"{error.get('exc_type')}: {error.get('exc_value')}")
    return lines
