"""A real API server of Airflow by itself, with users of every role, and a client that sends what it is told to."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from demo.airflow_api import AirflowApiError
from demo.stack import AirflowStack

HERE = Path(__file__).parent
_REPOSITORY = HERE.parents[1]
_FAB = "airflow.providers.fab.auth_manager.fab_auth_manager.FabAuthManager"
_PATIENCE = 600.0


@dataclass(frozen=True)
class Answer:
    status: int
    body: str
    headers: Mapping[str, str]


class ApiServer(AirflowStack):
    """The API server over HTTP, on SQLite. `users` maps the names of users to their roles."""

    def __init__(self, home: Path, users: Mapping[str, str], env: Mapping[str, str], *, fab: bool = False) -> None:
        # The code beside these tests, wherever they were copied to, and not the one that is installed.
        first = [_fab_packages()] if fab else []
        path = os.pathsep.join(str(folder) for folder in (*first, _REPOSITORY / "plugins", _REPOSITORY))
        more = {"AIRFLOW__CORE__AUTH_MANAGER": _FAB} if fab else {}
        super().__init__(home, HERE / "dags", {**env, "PYTHONPATH": path, **more}, users=users)
        self.tokens: dict[str, str] = {}

    def migrate(self) -> None:
        passwords = json.loads((self.home / "passwords.json").read_text())
        told = {name: (role, passwords[name]) for name, role in self.users.items()}
        done = subprocess.run(
            [sys.executable, "-m", "tests.trust.prepare"],
            cwd=_REPOSITORY,
            env=self.environment(),
            input=json.dumps(told),
            text=True,
            capture_output=True,
            timeout=_PATIENCE,
            check=False,
        )
        assert done.returncode == 0, (done.stdout + done.stderr)[-5000:]

    def start(self) -> None:
        self._choose_ports()
        (self.home / "logs-stack").mkdir(exist_ok=True)
        self._spawn("api-server")

    def wait_healthy(self, timeout: float = _PATIENCE) -> None:
        super().wait_healthy(timeout)
        passwords = json.loads((self.home / "passwords.json").read_text())
        for name in self.users:
            login = {"username": name, "password": passwords[name]}
            self.tokens[name] = self.http("POST", "/auth/token", login, timeout=_PATIENCE)["access_token"]

    def _not_healthy(self) -> list[str]:
        try:
            self.health()
        except AirflowApiError:
            return ["api-server"]
        return []

    def ask(
        self, token: str | None, method: str, target: str, body: Any = None, *, cookie: str | None = None
    ) -> Answer:
        """Sends this request target as it stands: a client with manners would tidy it up first."""
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        if cookie is not None:
            headers["Cookie"] = cookie
        data = None if body is None else json.dumps(body)
        if data is not None:
            headers["Content-Type"] = "application/json"
        with closing(http.client.HTTPConnection("127.0.0.1", int(self.url.rpartition(":")[2]), timeout=120)) as link:
            link.request(method, target, data, headers)
            answer = link.getresponse()
            text = answer.read().decode("utf-8", "replace")
            return Answer(answer.status, text, {name.lower(): value for name, value in answer.getheaders()})


def _fab_packages() -> Path:
    """Where the packages of Flask-AppBuilder are: installed once, for this interpreter."""
    wanted = HERE / "fab-requirements.txt"
    key = hashlib.sha256(wanted.read_bytes() + sys.version.encode()).hexdigest()[:12]
    folder = Path(sys.prefix) / f"fab-{key}"
    if not folder.exists():
        new = folder.with_name(f"{folder.name}.{os.getpid()}")
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        done = subprocess.run(
            [*pip, "--target", str(new), "--requirement", str(wanted)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            missing = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
            missing(f"Flask-AppBuilder could not be installed: {done.stderr[-1000:]}")
        if not folder.exists():  # another worker may have been faster
            new.replace(folder)
    return folder
