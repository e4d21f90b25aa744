"""pgmq, installed as SQL from the file its Python client carries, called on bare psycopg."""

from __future__ import annotations

import json
from importlib.resources import files

import psycopg

from bench.contestants.contestant import Contents, Contestant, timed


def install(url: str) -> psycopg.Connection:
    connection = psycopg.connect(url, autocommit=True)
    connection.execute("create schema if not exists pgmq")
    connection.execute((files("pgmq") / "sql" / "pgmq.sql").read_text())
    connection.execute("select pgmq.create('bench')")
    return connection


class Deleting(Contestant):
    """Reads and deletes."""

    finish = "delete"

    def __init__(self, url: str) -> None:
        self._connection = install(url)

    def enqueue(self, contents: Contents) -> float:
        def work() -> None:
            for content in contents:
                self._connection.execute("select pgmq.send('bench', %s::jsonb)", (json.dumps(content),))

        return timed(work)

    def bulk(self, contents: Contents) -> float:
        def work() -> None:
            messages = [json.dumps(content) for content in contents]
            self._connection.execute("select pgmq.send_batch('bench', %s::jsonb[])", (messages,))

        return timed(work)

    def take(self, count: int, size: int) -> float:
        return timed(lambda: [self._cycle(size) for _ in range(count // size)])

    def empty(self) -> None:
        self._connection.execute("select pgmq.purge_queue('bench')")

    def _cycle(self, size: int) -> None:
        rows = self._connection.execute("select * from pgmq.read('bench', 60, %s)", (size,)).fetchall()
        assert len(rows) == size
        self._connection.execute(f"select pgmq.{self.finish}('bench', %s::bigint[])", ([row[0] for row in rows],))


class Archiving(Deleting):
    """Reads and archives."""

    finish = "archive"
