"""The floor on SQLite: the standard library's driver, one UPDATE … RETURNING, acknowledged by the lease's token.

It neither checks, encodes (beyond JSON) nor decodes anything. Like is compared with like: a store that keeps what is
acknowledged with the loop that updates, one that removes it with the loop that deletes.
"""

from __future__ import annotations

import json
import sqlite3
import time
import uuid
from typing import Any

from bench.contestants.contestant import Contents, Contestant, timed

_TABLE = """
pragma journal_mode=wal;
pragma synchronous=full;
create table bare (id integer primary key, queue text not null, state integer not null default 0,
  visible_at integer not null, lease_token text, attempts integer not null default 0, enqueued_at integer not null,
  payload text not null);
create index bare_claim on bare (queue, visible_at, id) where state = 0;
"""
_INSERT = "insert into bare (queue, visible_at, enqueued_at, payload) values ('q', ?, ?, ?)"
_CLAIM = """
update bare set visible_at = ?, lease_token = ?, attempts = attempts + 1
where id in (select id from bare where queue = 'q' and state = 0 and visible_at <= ? order by visible_at, id limit ?)
returning id, attempts, payload
"""


class _Bare(Contestant):
    acknowledge: str

    def __init__(self, url: str) -> None:
        self._connection = sqlite3.connect(url, isolation_level=None)
        self._connection.executescript(_TABLE)

    def enqueue(self, contents: Contents) -> float:
        return timed(lambda: [self._insert([content]) for content in contents])

    def bulk(self, contents: Contents) -> float:
        return timed(lambda: self._insert(contents))

    def take(self, count: int, size: int) -> float:
        return timed(lambda: [self._cycle(size) for _ in range(count // size)])

    def empty(self) -> None:
        self._connection.execute("delete from bare where state = 0")

    def _insert(self, contents: Contents) -> None:
        now = time.time_ns()
        self._connection.execute("begin immediate")
        self._connection.executemany(_INSERT, [(now, now, json.dumps(content)) for content in contents])
        self._connection.execute("commit")

    def _cycle(self, size: int) -> None:
        token, now = str(uuid.uuid4()), time.time_ns()
        rows = self._transaction(_CLAIM, (now + 60 * 10**9, token, now, size))
        assert len(rows) == size
        self._transaction(self.acknowledge, (json.dumps([row[0] for row in rows]), token))

    def _transaction(self, statement: str, values: tuple[Any, ...]) -> list[Any]:
        self._connection.execute("begin immediate")
        rows = self._connection.execute(statement, values).fetchall()
        self._connection.execute("commit")
        return rows


class Deleting(_Bare):
    acknowledge = "delete from bare where id in (select value from json_each(?)) and lease_token = ?"


class Updating(_Bare):
    acknowledge = "update bare set state = 1 where id in (select value from json_each(?)) and lease_token = ?"
