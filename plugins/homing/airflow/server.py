"""Finding stores where Airflow's own database is at hand: on the command line, and in the API server."""

from __future__ import annotations

from airflow.models import Connection
from airflow.sdk.exceptions import AirflowNotFoundException

from homing.airflow.connection import url_of
from homing.airflow.hook import is_url
from homing.airflow.serialized import is_public
from homing.errors import ConfigurationError
from homing.stores import resolve_url


def find_url(reference: str) -> str:
    """As `homing.airflow.hook.find_url`, which asks as a task does: here, Airflow's own database is asked too."""
    if is_url(reference):
        return resolve_url(reference)
    connection_id, _, options = reference.partition("?")
    try:
        return url_of(Connection.get_connection_from_secrets(connection_id), options)
    except AirflowNotFoundException as error:
        raise ConfigurationError(f"there is no Airflow connection {connection_id!r} for a store") from error


def find_public_url(reference: str) -> str:
    """The same for the API server, which opens what stands in a DAG: a connection of our type, or a file.

    Raises ConfigurationError for everything else.
    """
    if not is_public(reference):
        raise ConfigurationError("this store is not named by a connection or as a SQLite file: it is not opened here")
    return find_url(reference)
