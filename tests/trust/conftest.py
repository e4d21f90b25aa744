from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import jwt
import pytest

from homing import Message
from homing.delivery import Batch, open_pipeline_stores
from homing.delivery.dead_letter import dead_letter_messages
from homing.ledger import FAILED, Entry
from tests.trust import expectations
from tests.trust.rogue import RogueServer
from tests.trust.server import ApiServer
from tests.unit.delivery.conftest import Pipeline

#: What hostile senders call their messages, and what becomes of the errors that quote them.
EVIL = ("<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "javascript:alert(1)", "{{ 7*7 }}", "\u202eevil")
#: A word that only messages of this team have, in their ids, contents or errors.
MARKS = {"own": "own-team-only", "other": "other-team-only"}
_AUDIENCE = "apache-airflow"


class Trial(ApiServer):
    """The API server with what it is tried on: messages of two teams, and places that must stay untouched."""

    def __init__(self, home: Path, auth: str, rogue: RogueServer) -> None:
        self.auth, self.rogue = auth, rogue
        self.files = home / "stores"
        self.files.mkdir(parents=True)
        self.missing = self.files / "missing.db"
        homing = {"conn_type": "homing"}
        connections: dict[str, Mapping[str, str]] = {
            **{f"{team}_store": {**homing, "password": self.urls(team)[0]} for team in MARKS},
            **{f"{team}_dead": {**homing, "password": self.urls(team)[1]} for team in MARKS},
            "not_ours": {"conn_type": "mysql", "host": "127.0.0.1", "password": rogue.url},
        }
        env = {
            **{f"AIRFLOW_CONN_{name.upper()}": json.dumps(fields) for name, fields in connections.items()},
            "TRUST_WORK": str(home / "work"),
            "TRUST_SECRET": self.urls("own")[0],
            "TRUST_DEAD": self.urls("own")[1],
            "TRUST_MISSING": f"sqlite:///{self.missing}?store=x",
        }
        fab = auth == "FAB"
        super().__init__(home, expectations.FAB_USERS if fab else expectations.SIMPLE_USERS, env, fab=fab)

    def urls(self, team: str) -> tuple[str, str]:
        """The team's store and dead-letter store."""
        return f"sqlite:///{self.files}/{team}.db?store={team}", f"sqlite:///{self.files}/{team}.db?store={team}_dead"

    def fill(self) -> None:
        """A run of every DAG, with messages of each team that are called, contain and fail with what is hostile."""
        for dag in (*expectations.DAGS[:-1], "own_replay"):
            run = {"dag_run_id": f"{dag}_run", "logical_date": None}
            made = self.ask(self.tokens["admin"], "POST", f"/api/v2/dags/{dag}/dagRuns", run)
            assert made.status == 200, made.body
        for team, mark in MARKS.items():
            with open_pipeline_stores(*self.urls(team)) as stores:
                pipeline, key = Pipeline(stores), f"{team}/{team}_run"
                messages = [Message(f"{mark} {evil}", f"content of {mark}", headers={"h": evil}) for evil in EVIL]
                stores.store.store_many(messages)
                batch = Batch(stores, key, ["crm"], chain=team)
                assert batch.claim(100) == len(EVIL)
                for message, evil in zip(messages, EVIL, strict=True):
                    error = {"type": evil, "message": evil, "handler": "crm", "stack": "", "attempt": 1}
                    pipeline.record(key, Entry(pipeline.ref(message.id), "crm", FAILED, error=error, batch_id=key))
                batch.settle()
                dead_letter_messages(stores, [messages[0].id], EVIL[1])

    def token(self, who: str = "admin") -> str | None:  # type: ignore[override]
        """What this user, or stranger, shows."""
        if who == "nobody":
            return None
        if who == "garbled":
            return "no.token.atall"
        if who in ("expired", "forged"):
            key = self._secrets["jwt"] if who == "expired" else "another key, and as long as it has to be: 0123456789"
            claims = jwt.decode(self.tokens["admin"], options={"verify_signature": False})
            ends = datetime.now(timezone.utc) + timedelta(hours=-1 if who == "expired" else 1)
            return jwt.encode({**claims, "exp": ends}, key, algorithm="HS512")
        return self.tokens[who]

    def untouched(self) -> dict[str, Any]:
        """What must be as before: who called the rogue, which files there are, which tables Airflow's database has."""
        with closing(sqlite3.connect(self.home / "airflow.db")) as metadata:
            tables = metadata.execute("select name from sqlite_master where name like '%homing%'").fetchall()
        return {"calls": self.rogue.calls, "files": sorted(self.files.glob("*.db")), "tables": tables}


@pytest.fixture(scope="session", params=["SimpleAuth", "FAB"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trial]:
    home = tmp_path_factory.mktemp(request.param)
    with RogueServer() as rogue, Trial(home / "airflow", request.param, rogue) as trial:
        trial.fill()
        yield trial
