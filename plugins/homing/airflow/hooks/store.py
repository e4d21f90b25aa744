"""StoreHook: a store behind an Airflow connection."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

from airflow.sdk import BaseHook, Connection
from airflow.sdk.exceptions import AirflowNotFoundException
from airflow.sdk.log import mask_secret

from homing.airflow.hooks.connection import connection_bus, connection_url
from homing.errors import ConfigurationError, HomingError, UnsupportedError
from homing.store import Store
from homing.store_ref import StoreRef
from homing.stores import open_store


class StoreHook(BaseHook):
    """Opens the store of a connection of type `homing`; `homing.airflow.hooks.connection` says how its form is read."""

    conn_name_attr = "homing_conn_id"
    default_conn_name = "homing_default"
    conn_type = "homing"
    hook_name = "Homing store"

    def __init__(self, homing_conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.homing_conn_id = homing_conn_id

    def get_url(self) -> str:
        """The store URL. A secret: never log it."""
        return self._get_url()

    def get_bus(self) -> str:
        """What MessageSender, MessageReceiver, BusListener and Administrator connect by. A secret: never log it."""
        return connection_bus(self._find(self.homing_conn_id))

    def _get_url(self, *, in_environment: bool = True) -> str:
        connection_id, _, options = self.homing_conn_id.partition("?")
        return connection_url(self._find(connection_id), options, in_environment=in_environment)

    def _find(self, connection_id: str) -> Connection:
        try:
            return self.get_connection(connection_id)
        except AirflowNotFoundException as error:
            raise ConfigurationError(_missing(connection_id)) from error

    def get_conn(self) -> Store:
        """The store, not yet connected; the caller closes it."""
        return open_store(self.get_url())

    def test_connection(self) -> tuple[bool, str]:
        """What the connection form's Test button shows: whether the store answers, and how full it is. The button may
        be pressed in the API server, which makes nothing for people and tells them nothing of its environment."""
        try:
            with _open_to_look(self._get_url(in_environment=False)) as store:
                counts = store.probe()
        except HomingError as error:
            return False, str(error)
        if counts is None:
            return True, f"Store {store.name!r} answers"
        found = ", ".join(f"{number} {state}" for state, number in counts.items() if number)
        return True, f"Store {store.name!r} answers: {found or 'no messages'}"


def _open_to_look(url: str) -> Store:
    """Where a database can be told not to write, it is."""
    try:
        return open_store(url, read_only=True)
    except UnsupportedError:
        return open_store(url)


def find_url(reference: str | StoreRef) -> str:
    """The store URL that an author named: by URL, by `env:NAME`, or by the id of an Airflow connection. The task's log
    shows neither it nor its password from now on."""
    url = StoreRef(reference).resolve(lambda connection: StoreHook(connection).get_url())
    password = urlsplit(url).password or ""
    for secret in filter(None, dict.fromkeys((url, password, unquote(password)))):
        mask_secret(secret)
    return url


def find_url_on_server(reference: str, *, in_environment: bool = True) -> str:
    """As `find_url`, which asks as a task does, where Airflow's own database is at hand: on the command line, and in
    the API server."""

    def find_connection(named: str) -> str:
        from airflow.models import Connection as StoredConnection

        connection_id, _, options = named.partition("?")
        try:
            found = StoredConnection.get_connection_from_secrets(connection_id)
        except AirflowNotFoundException as error:
            raise ConfigurationError(_missing(connection_id)) from error
        return connection_url(found, options, in_environment=in_environment)

    return StoreRef(reference).resolve(find_connection)


def find_public_url(reference: str) -> str:
    """The same for the API server, which opens what stands in a DAG: a connection of our type, or a file. What a
    connection says of the environment is not looked up.

    Raises ConfigurationError for everything else.
    """
    if not StoreRef(reference).is_public:
        raise ConfigurationError("this store is not named by a connection or as a SQLite file: it is not opened here")
    return find_url_on_server(reference, in_environment=False)


def _missing(connection_id: str) -> str:
    return f"there is no Airflow connection {connection_id!r}: create one of the type homing"
