"""The connections that handlers of a chain declare, as Airflow knows them at this moment."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any, TextIO, cast
from urllib.parse import quote

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException
from airflow.sdk.log import mask_secret

from homing.airflow.hooks.connection import ConnectionFields
from homing.connection import hide_secrets, read_connection
from homing.declared_connections import connections, missing_connection

_FIELDS = ("conn_type", "host", "login", "password", "schema", "port", "extra")


def find_connections(asked: Mapping[str, str]) -> dict[str, str]:
    """What these connections say, as JSON that Airflow reads too; `asked` says who asks for each. Secrets, which the
    task's log does not show from now on.

    Raises MissingConnectionError for one that Airflow does not find; it finds none either where it could not ask.
    """
    texts = _found(asked, BaseHook.get_connection)
    for conn_id, text in texts.items():
        read = read_connection(conn_id, text)
        secrets: list[Any] = [text, read.password, quote(read.password or "", safe=""), dict(read.extra)]
        for secret in filter(None, secrets):
            mask_secret(secret)
    return texts


def find_connections_on_server(asked: Mapping[str, str]) -> dict[str, str]:
    """The same where Airflow's own database is at hand: on the command line."""
    from airflow.models import Connection as StoredConnection

    return _found(asked, StoredConnection.get_connection_from_secrets)


@contextmanager
def connections_in_task(texts: Mapping[str, str]) -> Iterator[None]:
    """While the block lasts, handlers in the task's own process have these connections, and what they print shows no
    secret: Airflow hides it in the task's log, and not in the copy of it that goes to the scheduler's."""
    out, err = (cast("TextIO", _WithoutSecrets(stream)) for stream in (sys.stdout, sys.stderr))
    with connections(texts), redirect_stdout(out), redirect_stderr(err):
        yield


class _WithoutSecrets:
    """A stream to which everything is written without the secrets of connections."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(hide_secrets(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _found(asked: Mapping[str, str], find: Callable[[str], Any]) -> dict[str, str]:
    texts = {}
    for conn_id, who in asked.items():
        try:
            texts[conn_id] = _as_json(find(conn_id))
        except AirflowNotFoundException:
            raise missing_connection(conn_id, who) from None
        read_connection(conn_id, texts[conn_id])
    return texts


def _as_json(connection: ConnectionFields) -> str:
    said = {name: getattr(connection, name) for name in _FIELDS}
    return json.dumps({name: value for name, value in said.items() if value})
