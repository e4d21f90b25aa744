"""What a handler declares of connections, and where they are found: in the environment of the process it runs in.

There each is `AIRFLOW_CONN_<ID>`, as Airflow itself has it, so Airflow's hooks find it too. On Airflow a task puts them
there for the process that runs the handlers, for as long as that lives.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from homing.connection import Connection, read_connection, variable_of
from homing.errors import ChainError, MissingConnectionError

_ID = re.compile(r"[A-Za-z0-9_.-]{1,250}")


class DeclaredConnections:
    """The connections that one handler asks for, by their ids. Each is looked up anew, and so is never an old one."""

    __slots__ = ("ids", "who")

    def __init__(self, ids: object = (), who: str = "") -> None:
        """`who` asks, as errors put it. Raises ChainError for what are no ids."""
        if isinstance(ids, str) or not isinstance(ids, Iterable):
            raise ChainError(
                f"{who}: connections= takes a list of ids of Airflow connections, got {_shown(ids)}"
                + (f"; write connections=[{_shown(ids)}]" if isinstance(ids, str) and _ID.fullmatch(ids) else "")
            )
        self.ids: tuple[str, ...] = tuple(dict.fromkeys(ids))
        self.who = who
        for one in self.ids:
            if not isinstance(one, str) or not _ID.fullmatch(one):
                raise ChainError(
                    f"{who}: the id of a connection has letters, digits, and the characters _ . -, got {_shown(one)}"
                )

    def __getitem__(self, conn_id: str) -> Connection:
        """Raises ChainError for one that was not declared, MissingConnectionError for one that is not there."""
        if conn_id not in self.ids:
            raise ChainError(self._refusal(conn_id))
        return read_connection(conn_id, connection_text(conn_id, self.who))

    def require(self) -> None:
        """Raises MissingConnectionError where one of them is not there, or cannot be read."""
        for conn_id in self.ids:
            self[conn_id]

    def cover(self, picked: DeclaredConnections) -> None:
        """Raises ChainError unless a router that declares these may pick a handler that declares those: what it will
        pick is not known before, and what it needs must be."""
        for conn_id in picked.ids:
            if conn_id not in self.ids:
                raise ChainError(
                    f"the {self.who} picked the {picked.who}, which asks for the connection {conn_id!r}: add it to "
                    "connections= of the router too, so that it is there when it is needed"
                )

    def texts(self) -> dict[str, str]:
        """What the environment says of each."""
        return {conn_id: connection_text(conn_id, self.who) for conn_id in self.ids}

    def _refusal(self, conn_id: object) -> str:
        if not self.who:
            return f"the connection {_shown(conn_id)} is for a handler that declares it, and none is running"
        close = difflib.get_close_matches(str(conn_id), self.ids, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else f": add it to connections= of the {self.who}"
        declared = ", ".join(map(repr, self.ids)) or "none"
        return f"the {self.who} did not declare the connection {_shown(conn_id)} (it declared {declared}){hint}"


@contextmanager
def connections(given: Mapping[str, str | Mapping[str, Any] | Connection]) -> Iterator[None]:
    """While the block lasts, this process has these connections, for handlers and for hooks of Airflow alike.

    Each by its id: as a URI, as JSON, or as its fields, `{"host": "localhost", "password": "x"}`. Raises
    MissingConnectionError for one that cannot be read. They hold for all threads, and for processes started inside.
    """
    added = {}
    for conn_id, one in given.items():
        DeclaredConnections((conn_id,), "connections(...)")
        text = one if isinstance(one, str) else _written(conn_id, one)
        read_connection(conn_id, text)
        added[variable_of(conn_id)] = text
    before = {name: os.environ.get(name) for name in added}
    os.environ.update(added)
    try:
        yield
    finally:
        for name, earlier in before.items():
            os.environ.pop(name, None) if earlier is None else os.environ.update({name: earlier})


def connection_text(conn_id: str, who: str) -> str:
    """What the environment says of a connection. A secret. Raises MissingConnectionError, which says who asked."""
    text = os.environ.get(variable_of(conn_id))
    if not text:
        raise missing_connection(conn_id, who)
    return text


def texts_in_environment(asked: Mapping[str, str]) -> dict[str, str]:
    """What the environment says of these connections; `asked` says who asks for each. Raises MissingConnectionError."""
    texts = {conn_id: connection_text(conn_id, who) for conn_id, who in asked.items()}
    for conn_id, text in texts.items():
        read_connection(conn_id, text)
    return texts


def missing_connection(conn_id: str, who: str) -> MissingConnectionError:
    """The error for a connection that is not there; `who` asks for it."""
    return MissingConnectionError(
        f"there is no connection {conn_id!r}, which the {who} asks for: create it in Airflow; without Airflow, set "
        f"{variable_of(conn_id)} to its URI or its JSON. No message has failed"
    )


def _written(conn_id: str, given: Mapping[str, Any] | Connection) -> str:
    try:
        return given.as_text() if isinstance(given, Connection) else json.dumps(dict(given))
    except (TypeError, ValueError):
        raise MissingConnectionError(
            f"the connection {conn_id!r} must be a URI, JSON or a mapping of its fields, got a {type(given).__name__} "
            "that JSON cannot hold"
        ) from None


def _shown(thing: object) -> str:
    return f"{thing!r:.80}" if isinstance(thing, str) else f"a {type(thing).__name__}"
