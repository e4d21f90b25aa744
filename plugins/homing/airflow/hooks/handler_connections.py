"""The connections that handlers of a chain declare, as Airflow knows them at this moment."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException
from airflow.sdk.log import mask_secret

from homing.airflow.hooks.connection import ConnectionFields
from homing.connection import read_connection
from homing.declared_connections import missing_connection

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
